#pragma once

#include <string>
#include <vector>

#include <torch/types.h>

#include "ddaebm/ops/time_mlp.h"
#include "ddaebm/random.h"

namespace ddaebm::ops {

// A fast operator beside its plain twin: the largest difference, relative to the largest entry.
struct CheckResult {
  std::string name;
  double error = 0.0;
  double allowed = 0.0;
  bool passed() const { return error <= allowed; }
};

// A small network of random parameters, which require gradients.
enum class NormPlace { none, before_prelu, after_prelu };
TimeMlpParts random_time_mlp(Random& random, const torch::TensorOptions& options, int64_t in,
                             int64_t out, NormPlace norm);

// Results, first and second derivatives of every fast operator, in float32 and float64.
std::vector<CheckResult> check_all(torch::Device device);

}  // namespace ddaebm::ops
