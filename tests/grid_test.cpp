#include "ddaebm/metrics/grid.h"

#include <cmath>
#include <numbers>

#include <gtest/gtest.h>
#include <torch/types.h>

#include "ddaebm/error.h"

namespace ddaebm {
namespace {

// A round Gaussian about (mean, 0).
LogDensity gaussian(double mean, double std) {
  return [=](const torch::Tensor& x) {
    auto squared = (x.select(1, 0) - mean).square() + x.select(1, 1).square();
    return -squared / (2 * std * std) - std::log(2 * std::numbers::pi * std * std);
  };
}

torch::Tensor vector(std::vector<double> values) { return torch::tensor(values, torch::kDouble); }

TEST(Grid, CentresGoAlongXFirstFromTheBottom) {
  const Grid grid{2, 0, 4};
  auto expected = vector({1, 1, 3, 1, 1, 3, 3, 3}).view({4, 2});
  EXPECT_TRUE(grid.centres(torch::kDouble).equal(expected));
  auto single = grid.centres(torch::kFloat);
  EXPECT_EQ(single.scalar_type(), torch::kFloat);
  EXPECT_TRUE(single.is_contiguous());
}

TEST(Grid, ProbabilitiesSumToOneWhateverTheScale) {
  auto shifted = [](const torch::Tensor& x) { return gaussian(0, 1)(x) + 1000; };
  auto log_p = grid_log_probabilities(shifted, Grid{}, torch::kFloat);
  EXPECT_EQ(log_p.sizes(), (std::vector<int64_t>{400 * 400}));
  EXPECT_EQ(log_p.scalar_type(), torch::kDouble);
  EXPECT_NEAR(log_p.exp().sum().item<double>(), 1, 1e-12);
}

TEST(Grid, KlOfGaussiansIsTheClosedForm) {
  const Grid grid{200, -10, 10};
  auto p = grid_log_probabilities(gaussian(0.3, 0.8), grid, torch::kDouble);
  auto q = grid_log_probabilities(gaussian(-0.5, 1.3), grid, torch::kDouble);
  const double ratio = 0.8 * 0.8 / (1.3 * 1.3);
  const double expected = ratio - 1 - std::log(ratio) + 0.8 * 0.8 / (2 * 1.3 * 1.3);
  EXPECT_NEAR(kl_divergence(p, q), expected, 1e-9);
  EXPECT_EQ(kl_divergence(p, p), 0);
}

TEST(Grid, KlOfEmptyCells) {
  auto half = vector({0.5, 0.5, 0}).log();
  auto third = vector({1, 1, 1}).div(3).log();
  EXPECT_NEAR(kl_divergence(half, third), std::log(1.5), 1e-12);
  EXPECT_EQ(kl_divergence(half, half), 0);
  EXPECT_EQ(kl_divergence(third, half), INFINITY);
}

TEST(Grid, BadDensitiesAreErrors) {
  auto nan_at_right = [](const torch::Tensor& x) {
    return x.select(1, 0).masked_fill(x.select(1, 0) > 3, NAN);
  };
  const Grid grid{8, -4, 4};
  try {
    grid_log_probabilities(nan_at_right, grid, torch::kFloat);
    FAIL() << "NaN was accepted";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("NaN or +inf at 8 of 64"), std::string::npos)
        << error.what();
    EXPECT_NE(std::string(error.what()).find("(3.5, -3.5)"), std::string::npos) << error.what();
  }
  EXPECT_THROW(cell_masses(nan_at_right, grid), Error);
  auto constant = [](double value) {
    return [value](const torch::Tensor& x) { return torch::full({x.size(0)}, value); };
  };
  EXPECT_THROW(grid_log_probabilities(constant(INFINITY), grid, torch::kFloat), Error);
  EXPECT_THROW(grid_log_probabilities(constant(-INFINITY), grid, torch::kFloat), Error);
  auto column = [](const torch::Tensor& x) { return x.narrow(1, 0, 1); };
  EXPECT_THROW(grid_log_probabilities(column, grid, torch::kFloat), c10::Error);
}

TEST(Grid, HistogramCountsPointsOutside) {
  const Grid grid{2, 0, 4};
  auto points = vector({1, 1, 3, 1, 3, 0, 1, 2, 4, 1, -0.1, 1, NAN, 1, 1, INFINITY}).view({8, 2});
  EXPECT_TRUE(histogram(points, grid).equal(vector({1, 2, 1, 0, 4}) / 8));
  EXPECT_TRUE(histogram(points.to(torch::kFloat), grid).equal(vector({1, 2, 1, 0, 4}) / 8));
}

TEST(Grid, CellMassesAreThoseOfTheDensity) {
  const Grid grid{4, -1, 1};
  auto masses = cell_masses(gaussian(0, 0.7), grid, 64);
  auto normal = [](double x) { return 0.5 * std::erfc(-x / (0.7 * std::numbers::sqrt2)); };
  const double inner = normal(0.5) - normal(0);
  const double outer = normal(1) - normal(0.5);
  EXPECT_NEAR(masses[0].item<double>(), outer * outer, 1e-5);
  EXPECT_NEAR(masses[1].item<double>(), outer * inner, 1e-5);
  EXPECT_NEAR(masses[5].item<double>(), inner * inner, 1e-5);
  EXPECT_EQ(masses.size(0), 17);
  EXPECT_NEAR(masses[16].item<double>(), 1 - std::pow(2 * (inner + outer), 2), 1e-4);
  EXPECT_NEAR(masses.sum().item<double>(), 1, 1e-12);
}

TEST(Grid, CellMassesAndHistogramAgreeOnTheOrder) {
  const Grid grid{10, -4, 4};
  auto points = torch::randn({200000, 2}, torch::kDouble) * 0.5;
  points.select(1, 0) += 2;
  EXPECT_LT(jensen_shannon(histogram(points, grid), cell_masses(gaussian(2, 0.5), grid, 16)), 1e-3);
}

TEST(Grid, JensenShannonIsSymmetricAndBounded) {
  auto p = vector({0.2, 0.5, 0.3, 0});
  auto q = vector({0.4, 0.1, 0.1, 0.4});
  double expected = 0;
  for (int i = 0; i < 4; ++i) {
    const auto a = p[i].item<double>();
    const auto b = q[i].item<double>();
    if (a > 0) expected += a / 2 * std::log(2 * a / (a + b));
    if (b > 0) expected += b / 2 * std::log(2 * b / (a + b));
  }
  EXPECT_NEAR(jensen_shannon(p, q), expected, 1e-14);
  EXPECT_NEAR(jensen_shannon(p, q), jensen_shannon(q, p), 1e-15);
  EXPECT_EQ(jensen_shannon(p, p), 0);
  EXPECT_NEAR(jensen_shannon(vector({1, 0, 0}), vector({0, 0.5, 0.5})), std::log(2.0), 1e-14);
}

TEST(JensenShannon, IsFiniteForTheSmallestMassThereIs) {
  const auto p = torch::tensor({5e-324, 1.0, 0.0}, torch::kDouble);
  const auto q = torch::tensor({0.0, 1.0, 0.0}, torch::kDouble);
  EXPECT_NEAR(jensen_shannon(p, q), 0.0, 1e-12);
}

}  // namespace
}  // namespace ddaebm
