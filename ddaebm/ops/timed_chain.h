#pragma once

#include <vector>

#include <torch/types.h>

namespace ddaebm::ops {

// x [N, K] -> act(x W^T + bias + before[t]) + after[t], [N, C]. The last layer of a chain is linear
// and adds nothing for t.
struct TimedDense {
  torch::Tensor weight, bias;       // [C, K], [C]
  torch::Tensor slope;              // of a PReLU, [1]; undefined: SiLU or softplus
  torch::Tensor after{}, before{};  // [T, C]; undefined: nothing is added; `before` with SiLU only
  bool silu = false;                // rather than softplus
};

// The layers one after the other, for t [N] int64, which may be undefined where nothing is added.
// Differentiable at will; second derivatives are the plain operators'.
torch::Tensor timed_chain(const std::vector<TimedDense>& layers, const torch::Tensor& x,
                          const torch::Tensor& t);

namespace reference {
// The same in plain tensor operations.
torch::Tensor timed_chain(const std::vector<TimedDense>& layers, torch::Tensor x,
                          const torch::Tensor& t);
}  // namespace reference

}  // namespace ddaebm::ops
