#pragma once

#include <functional>

#include <torch/types.h>

namespace ddaebm {

// A square grid of cell centres over [low, high]^2.
struct Grid {
  int64_t side = 400;
  double low = -4.0;
  double high = 4.0;

  double cell() const { return (high - low) / static_cast<double>(side); }
  // [side * side, 2], x fastest, rows from the bottom up.
  torch::Tensor centres(const torch::TensorOptions& options) const;
};

using LogDensity = std::function<torch::Tensor(const torch::Tensor&)>;  // [N, 2] -> [N]

// The function at the centres, normalised to log-probabilities that sum to one over the grid:
// float64 [side * side] on the CPU. Evaluated in chunks. NaN or +inf at a centre, or -inf at all,
// is an Error.
torch::Tensor grid_log_probabilities(const LogDensity& log_density, const Grid& grid,
                                     const torch::TensorOptions& options);

// KL(p || q) of two such vectors, in nats. Cells with p = 0 contribute nothing; q = 0 where p is
// not makes it infinite.
double kl_divergence(const torch::Tensor& log_p, const torch::Tensor& log_q);

// Share of the points [N, 2] in each cell, and of those outside as a last entry:
// float64 [side * side + 1] on the CPU.
torch::Tensor histogram(const torch::Tensor& points, const Grid& grid);

// Mass of the density in each cell by the midpoint rule (`per_side` points a cell and direction),
// what is missing to one as a last entry, 0 if nothing is: float64 [side * side + 1] on the CPU.
torch::Tensor cell_masses(const LogDensity& log_density, const Grid& grid, int64_t per_side = 4);

// Jensen-Shannon divergence in nats, between 0 and ln 2.
double jensen_shannon(const torch::Tensor& p, const torch::Tensor& q);

}  // namespace ddaebm
