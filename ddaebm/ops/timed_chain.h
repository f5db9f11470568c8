#pragma once

#include <vector>

#include <torch/types.h>

#include "ddaebm/ops/bend.h"

namespace ddaebm::ops {

// x [N, K] -> bend(x W^T + bias + before[t]) + after[t], [N, C]. The last layer of a chain is
// linear, and no other.
struct TimedDense {
  torch::Tensor weight, bias;       // [C, K], [C]
  torch::Tensor slope{};            // of a PReLU, [1]
  torch::Tensor after{}, before{};  // [T, C]; undefined: nothing is added; no `before` with PReLUs
  Bend bend = Bend::linear;
};

// The layers one after the other, for t [N] int64, which may be undefined where nothing is added.
// Differentiable at will: fused are the first derivatives, and those of a gradient in x; what is
// beyond is the plain operators'.
torch::Tensor timed_chain(const std::vector<TimedDense>& layers, const torch::Tensor& x,
                          const torch::Tensor& t);

namespace reference {
// The same in plain tensor operations.
torch::Tensor timed_chain(const std::vector<TimedDense>& layers, const torch::Tensor& x,
                          const torch::Tensor& t);
}  // namespace reference

}  // namespace ddaebm::ops
