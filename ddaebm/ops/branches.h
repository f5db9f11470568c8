#pragma once

#include <torch/types.h>

// Where the branches of a residual network meet. All linear, so that any derivative is one of them
// again; on a GPU one pass over memory each, with the biases' gradients in the same.
namespace ddaebm::ops {

// (a + b + bias) / sqrt(2), which keeps the variance of two alike; bias [N, C].
torch::Tensor residual(const torch::Tensor& a, const torch::Tensor& b, const torch::Tensor& bias);

// Channels of a, then those of b.
torch::Tensor concatenate(const torch::Tensor& a, const torch::Tensor& b);

namespace reference {
torch::Tensor residual(const torch::Tensor& a, const torch::Tensor& b, const torch::Tensor& bias);
torch::Tensor concatenate(const torch::Tensor& a, const torch::Tensor& b);
}  // namespace reference

}  // namespace ddaebm::ops
