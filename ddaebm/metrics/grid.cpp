#include "ddaebm/metrics/grid.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "ddaebm/error.h"

namespace ddaebm {
namespace {

// The function at points [N, 2]: float64 [N] on the CPU.
torch::Tensor evaluate(const LogDensity& log_density, const torch::Tensor& points) {
  constexpr int64_t kChunk = 16384;
  std::vector<torch::Tensor> parts;
  for (const auto& piece : points.split(kChunk)) {
    auto values = log_density(piece).detach();
    TORCH_CHECK(values.dim() == 1 && values.size(0) == piece.size(0), "a log-density of ",
                piece.sizes(), " must be [N], not ", values.sizes());
    parts.push_back(values.to(torch::kCPU, torch::kDouble));
  }
  auto all = torch::cat(parts);
  auto bad = (all.isnan() | (all == INFINITY)).nonzero();
  if (bad.size(0) > 0) {
    const auto first = bad[0][0].item<int64_t>();
    const auto where = points[first].to(torch::kCPU, torch::kDouble);
    fail(
        "the log-density is NaN or +inf at {} of {} grid points, first {} at ({:.4g}, {:.4g}); "
        "has the training diverged?",
        bad.size(0), all.size(0), all[first].item<double>(), where[0].item<double>(),
        where[1].item<double>());
  }
  return all;
}

}  // namespace

torch::Tensor Grid::centres(const torch::TensorOptions& options) const {
  auto axis = (torch::arange(side, options.dtype(torch::kDouble)) + 0.5) * cell() + low;
  auto x = axis.expand({side, side});
  return torch::stack({x, x.t()}, -1).reshape({-1, 2}).to(options);
}

torch::Tensor grid_log_probabilities(const LogDensity& log_density, const Grid& grid,
                                     const torch::TensorOptions& options) {
  auto values = evaluate(log_density, grid.centres(options));
  auto total = torch::logsumexp(values, 0);
  if (total.item<double>() == -INFINITY) {
    fail("the density is 0 at all {} points of the grid over [{}, {}]^2", values.size(0), grid.low,
         grid.high);
  }
  return values - total;
}

double kl_divergence(const torch::Tensor& log_p, const torch::Tensor& log_q) {
  TORCH_CHECK(log_p.sizes() == log_q.sizes(), "KL of ", log_p.sizes(), " and ", log_q.sizes());
  auto first = log_p.to(torch::kDouble);
  auto p = first.exp();
  auto terms = p * (first - log_q.to(torch::kDouble));
  return terms.masked_fill(p == 0, 0).sum().item<double>();
}

torch::Tensor histogram(const torch::Tensor& points, const Grid& grid) {
  TORCH_CHECK(points.dim() == 2 && points.size(1) == 2 && points.size(0) > 0,
              "points must be [N, 2] with N > 0, not ", points.sizes());
  auto cell = ((points.to(torch::kCPU, torch::kDouble) - grid.low) / grid.cell()).floor();
  auto inside = ((cell >= 0) & (cell < grid.side)).all(1);  // false for NaN
  auto index = (cell.select(1, 1) * grid.side + cell.select(1, 0))
                   .masked_fill(~inside, grid.side * grid.side)
                   .to(torch::kLong);
  auto counts = torch::bincount(index, {}, grid.side * grid.side + 1);
  return counts.to(torch::kDouble) / points.size(0);
}

torch::Tensor cell_masses(const LogDensity& log_density, const Grid& grid, int64_t per_side) {
  const Grid fine{grid.side * per_side, grid.low, grid.high};
  auto density = evaluate(log_density, fine.centres(torch::kDouble)).exp();
  auto masses = density.view({grid.side, per_side, grid.side, per_side}).sum({1, 3}).view({-1}) *
                (fine.cell() * fine.cell());
  auto missing = (1 - masses.sum(0, /*keepdim=*/true)).clamp_min(0);
  return torch::cat({masses, missing});
}

double jensen_shannon(const torch::Tensor& p, const torch::Tensor& q) {
  TORCH_CHECK(p.sizes() == q.sizes(), "Jensen-Shannon of ", p.sizes(), " and ", q.sizes());
  auto first = p.to(torch::kDouble);
  auto second = q.to(torch::kDouble);
  auto both = first + second;
  // By the ratio: half of the smallest number above zero would be zero, and its logarithm infinite.
  auto to_middle = [&](const torch::Tensor& a) {
    return torch::xlogy(a, 2 * a / both).masked_fill(a == 0, 0).sum().item<double>();
  };
  return std::max(0.0, (to_middle(first) + to_middle(second)) / 2);  // rounding can go below
}

}  // namespace ddaebm
