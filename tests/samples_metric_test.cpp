#include <algorithm>
#include <cmath>
#include <vector>

#include <gtest/gtest.h>
#include <torch/types.h>

#include "ddaebm/error.h"
#include "ddaebm/metrics/samples.h"

namespace ddaebm {
namespace {

torch::Tensor normal(int64_t n, int64_t dimension) {
  return torch::randn({n, dimension}, torch::kDouble);
}

double distance(const torch::Tensor& a, const torch::Tensor& b) {
  return (a - b).square().sum().sqrt().item<double>();
}

// The definition, pair by pair.
double slow_discrepancy(const torch::Tensor& x, const torch::Tensor& y) {
  std::vector<double> distances;
  for (int64_t i = 0; i < y.size(0); ++i)
    for (int64_t j = 0; j < i; ++j) distances.push_back(distance(y[i], y[j]));
  std::sort(distances.begin(), distances.end());
  const double median = distances[(distances.size() - 1) / 2];
  auto mean = [&](const torch::Tensor& a, const torch::Tensor& b, bool same) {
    double sum = 0;
    int64_t pairs = 0;
    for (int64_t i = 0; i < a.size(0); ++i) {
      for (int64_t j = 0; j < b.size(0); ++j) {
        if (same && i == j) continue;
        ++pairs;
        for (const double factor : {0.25, 0.5, 1.0, 2.0, 4.0})
          sum += std::exp(-0.5 * std::pow(distance(a[i], b[j]) / (factor * median), 2));
      }
    }
    return sum / static_cast<double>(pairs);
  };
  return mean(x, x, true) + mean(y, y, true) - 2 * mean(x, y, false);
}

TEST(MaximumMeanDiscrepancy, IsTheDefinition) {
  torch::manual_seed(0);
  auto x = normal(31, 3);
  auto y = normal(40, 3) * 1.5 + 0.5;
  EXPECT_NEAR(maximum_mean_discrepancy(x, y), slow_discrepancy(x, y), 1e-12);
  EXPECT_NEAR(maximum_mean_discrepancy(x.to(torch::kFloat), y.to(torch::kFloat)),
              slow_discrepancy(x, y), 1e-6);
}

TEST(MaximumMeanDiscrepancy, IsZeroOnAverageForOneDistribution) {
  torch::manual_seed(1);
  double sum = 0;
  double least = 1;
  for (int i = 0; i < 200; ++i) {
    const double value = maximum_mean_discrepancy(normal(50, 2), normal(60, 2));
    sum += value;
    least = std::min(least, value);
  }
  EXPECT_LT(least, 0);
  EXPECT_NEAR(sum / 200, 0, 0.005);
}

// More rows than one chunk, more reference points than the median looks at.
TEST(MaximumMeanDiscrepancy, TellsLargeSamplesApart) {
  torch::manual_seed(2);
  auto y = normal(4500, 2);
  EXPECT_LT(std::abs(maximum_mean_discrepancy(normal(3000, 2), y)), 0.003);
  EXPECT_GT(maximum_mean_discrepancy(normal(3000, 2) + 0.5, y), 0.05);
}

TEST(MaximumMeanDiscrepancy, NeedsTwoPointsAndAWidth) {
  EXPECT_THROW(maximum_mean_discrepancy(normal(1, 2), normal(5, 2)), Error);
  EXPECT_THROW(maximum_mean_discrepancy(normal(5, 2), normal(1, 2)), Error);
  EXPECT_THROW(maximum_mean_discrepancy(normal(5, 2), torch::ones({5, 2})), Error);
  EXPECT_THROW(maximum_mean_discrepancy(normal(5, 2), torch::full({5, 2}, NAN)), Error);
  EXPECT_THROW(maximum_mean_discrepancy(normal(5, 2), normal(5, 3)), c10::Error);
}

TEST(ModeCoverage, CountsPointsWithinTheRadius) {
  auto centres = torch::tensor({0.0, 0.0, 10.0, 0.0, 0.0, 10.0}, torch::kDouble).view({3, 2});
  auto points =
      torch::tensor({0.0, 0.39, 0.41, 0.0, 10.0, 0.1, 10.2, 0.2, 50.0, 50.0, std::nan(""), 0.0},
                    torch::kDouble)
          .view({6, 2});
  auto found = mode_coverage(points, centres, 0.1);
  EXPECT_EQ(found.modes, 2);
  EXPECT_DOUBLE_EQ(found.high_quality, 3.0 / 6);
  found = mode_coverage(points.to(torch::kFloat), centres, 0.1, 5);
  EXPECT_EQ(found.modes, 2);
  EXPECT_DOUBLE_EQ(found.high_quality, 4.0 / 6);
  EXPECT_EQ(mode_coverage(points + 1000, centres, 0.1).modes, 0);
}

TEST(ModeCoverage, AModeNeedsATenthOfItsShare) {
  auto centres = torch::tensor({0.0, 0.0, 1.0, 0.0}, torch::kDouble).view({2, 2});
  auto with = [&](int64_t in_second) {  // of 200 points; the fair share is 100
    auto points = torch::zeros({200, 2}, torch::kDouble);
    points.narrow(0, 0, in_second).select(1, 0).fill_(1);
    return mode_coverage(points, centres, 0.01);
  };
  EXPECT_EQ(with(9).modes, 1);
  EXPECT_EQ(with(10).modes, 2);
  EXPECT_DOUBLE_EQ(with(9).high_quality, 1);
}

}  // namespace
}  // namespace ddaebm
