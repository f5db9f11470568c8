#pragma once

#include <span>

// How well one score tells two sets apart: `inside` (positives) should score higher than `outside`.
// Exact, ties counted as ties. An empty set and NaN are Errors; infinities are scores like others.
namespace ddaebm {

// Chance that a score of `inside` exceeds one of `outside`, a tie counting half.
double auroc(std::span<const double> inside, std::span<const double> outside);

// Average precision: the sum over thresholds of precision times the recall gained; equal scores
// pass a threshold together. The share of `inside` is what a useless score gets.
double average_precision(std::span<const double> inside, std::span<const double> outside);

// The least share of `outside` that is let in by a threshold which lets in at least the share
// `wanted` (0 < wanted <= 1) of `inside`.
double false_positive_rate(std::span<const double> inside, std::span<const double> outside,
                           double wanted = 0.95);

}  // namespace ddaebm
