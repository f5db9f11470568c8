#pragma once

#include <cstdint>

#include <torch/types.h>

// Two sets of feature vectors compared: [N, D] and [M, D], any floating type and device; numbers
// that are not finite and sets that are too small are Errors.
namespace ddaebm {

struct KidConfig {
  int64_t subsets = 100;
  int64_t subset_size = 1000;  // or the smaller set, if that is smaller
  uint64_t seed = 0;
};
struct Kid {
  double mean = 0.0;  // over the subsets
  double std = 0.0;   // of the subsets' values, divided by their number
};
// Kernel Inception distance: squared maximum mean discrepancy under (x.y / D + 1)^3, unbiased (so
// it can be below zero), over pairs of random subsets without repetition.
Kid kernel_inception_distance(const torch::Tensor& real, const torch::Tensor& fake,
                              const KidConfig& config = {});

struct PrecisionRecall {
  double precision = 0.0;  // share of the fake vectors near a real one
  double recall = 0.0;     // share of the real vectors near a fake one
};
// Near a vector is what lies no further from it than its k-th nearest neighbour in its own set.
PrecisionRecall precision_recall(const torch::Tensor& real, const torch::Tensor& fake,
                                 int64_t k = 3);

}  // namespace ddaebm
