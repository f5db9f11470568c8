#include "ddaebm/metrics/samples.h"

#include <algorithm>

#include "ddaebm/error.h"

namespace ddaebm {
namespace {

// Rows of a table with `columns` numbers that take 8 MB.
int64_t chunk_rows(int64_t columns) {
  return std::max<int64_t>(1, (int64_t{1} << 20) / std::max<int64_t>(1, columns));
}

// Sum of the kernel over all pairs of a row of a [N, D] and one of b [M, D].
double kernel_sum(const torch::Tensor& a, const torch::Tensor& b, double median) {
  const double widest = 4 * median;
  auto total = torch::zeros({}, a.options());
  for (const auto& rows : a.split(chunk_rows(b.size(0)))) {
    // Half the width is the fourth power of the kernel, so one exponential serves all five.
    auto kernel = (torch::cdist(rows, b).square_() / (-2 * widest * widest)).exp_();
    total += kernel.sum();
    for (int halving = 0; halving < 4; ++halving) total += kernel.square_().square_().sum();
  }
  return total.item<double>();
}
constexpr double kKernelOfEqual = 5;

// The mean where more than half of the pairs are equal.
double median_distance(const torch::Tensor& points) {
  constexpr int64_t kMost = 4000;  // 64 MB of distances
  const auto distances = torch::pdist(points.narrow(0, 0, std::min(kMost, points.size(0))));
  const double median = distances.median().item<double>();
  return median > 0 ? median : distances.mean().item<double>();
}

}  // namespace

ModeCoverage mode_coverage(const torch::Tensor& points, const torch::Tensor& centres, double std,
                           double radius_in_std) {
  TORCH_CHECK(points.dim() == 2 && centres.dim() == 2 && points.size(1) == centres.size(1) &&
                  points.size(0) > 0 && centres.size(0) > 0,
              "mode coverage of points ", points.sizes(), " and centres ", centres.sizes());
  const int64_t n = points.size(0);
  const int64_t modes = centres.size(0);
  auto targets = centres.to(points.device(), torch::kDouble);
  auto held = torch::zeros({modes}, torch::kLong);  // points of each mode
  for (const auto& rows : points.split(chunk_rows(modes))) {
    auto [distance, nearest] = torch::cdist(rows.to(torch::kDouble), targets).min(1);
    auto near = nearest.masked_select(distance <= radius_in_std * std);
    held += torch::bincount(near.cpu(), {}, modes);
  }
  const double needed = 0.1 * static_cast<double>(n) / static_cast<double>(modes);
  return {(held >= needed).sum().item<int64_t>(),
          static_cast<double>(held.sum().item<int64_t>()) / static_cast<double>(n)};
}

double maximum_mean_discrepancy(const torch::Tensor& samples, const torch::Tensor& reference) {
  TORCH_CHECK(samples.dim() == 2 && reference.dim() == 2 && samples.size(1) == reference.size(1),
              "maximum mean discrepancy of ", samples.sizes(), " and ", reference.sizes());
  if (samples.size(0) < 2 || reference.size(0) < 2) {
    fail("the maximum mean discrepancy needs at least 2 points a sample, not {} and {}",
         samples.size(0), reference.size(0));
  }
  auto x = samples.to(torch::kDouble).contiguous();
  auto y = reference.to(x.device(), torch::kDouble).contiguous();
  const double median = median_distance(y);
  if (!(median > 0)) {
    fail("the median distance of the reference sample is {}; is it constant or NaN?", median);
  }
  const auto n = static_cast<double>(x.size(0));
  const auto m = static_cast<double>(y.size(0));
  return (kernel_sum(x, x, median) - n * kKernelOfEqual) / (n * (n - 1)) +
         (kernel_sum(y, y, median) - m * kKernelOfEqual) / (m * (m - 1)) -
         2 * kernel_sum(x, y, median) / (n * m);
}

}  // namespace ddaebm
