#pragma once

#include <torch/types.h>

namespace ddaebm {

struct ModeCoverage {
  int64_t modes = 0;          // modes that hold at least a tenth of their fair share of points
  double high_quality = 0.0;  // share of points that are held by a mode
};
// points [N, 2], centres [M, 2]. A point is held by the mode with the nearest centre if it lies
// within `radius_in_std` standard deviations of it. The fair share of a mode is N / M points.
ModeCoverage mode_coverage(const torch::Tensor& points, const torch::Tensor& centres, double std,
                           double radius_in_std = 4.0);

// Squared maximum mean discrepancy, unbiased (so it can be below zero), of two samples [N, D] and
// [M, D] under a sum of Gaussian kernels exp(-d^2 / 2 w^2) whose widths w are 1/4, 1/2, 1, 2 and 4
// times the median distance between two points of the second (of its first 4000, if it has more).
double maximum_mean_discrepancy(const torch::Tensor& samples, const torch::Tensor& reference);

}  // namespace ddaebm
