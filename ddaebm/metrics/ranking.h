#pragma once

#include <cstdint>
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

// A number, and where the middle `coverage` of its bootstrap resamples lies.
struct Interval {
  double value = 0.0, low = 0.0, high = 0.0;
};
// How intervals are made.
struct Bootstrap {
  int64_t resamples = 1000;
  double coverage = 0.95;
  uint64_t seed = 0;
};
// What `separation` finds.
struct Separation {
  Interval auroc, average_precision, false_positive_rate;  // the last at 95 % of `inside`
};
// The three with percentile intervals; both sets are drawn anew with repetition. Two scores of each
// at least.
Separation separation(std::span<const double> inside, std::span<const double> outside,
                      const Bootstrap& bootstrap = {});

// The highest score below which lies at most the share `rate` (0 <= rate < 1) of `inside`.
double false_alarm_threshold(std::span<const double> inside, double rate);

}  // namespace ddaebm
