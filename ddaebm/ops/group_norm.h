#pragma once

#include <torch/types.h>

namespace ddaebm::ops {

// y = scale norm(x) + shift, and silu(y) = y sigmoid(y) where asked for; x [N, C, H, W] is
// normalised over each image's groups of C / groups channels. scale and shift are [C], or [N, C]
// for a norm that adapts to each image. Twice differentiable in all of them.
struct GroupNormConfig {
  int64_t groups = 1;
  bool silu = true;
  double eps = 1e-6;
};
torch::Tensor group_norm(const torch::Tensor& x, const torch::Tensor& scale,
                         const torch::Tensor& shift, const GroupNormConfig& config);

// The norm of x, and x for its other user: the gradients of both are added up in one pass.
struct NormAndInput {
  torch::Tensor norm, input;
};
NormAndInput group_norm_and_input(const torch::Tensor& x, const torch::Tensor& scale,
                                  const torch::Tensor& shift, const GroupNormConfig& config);

// Elements of y are dropped at `rate`, the others grow by 1 / (1 - rate). Which ones
// follows from the seed, int64 [1], and the salt, which tells layers apart that share a seed.
struct Dropout {
  double rate = 0.0;
  torch::Tensor seed;
  int64_t salt = 0;
};
// The norm of x + add, add [N, C], with dropout after it.
torch::Tensor group_norm(const torch::Tensor& x, const torch::Tensor& add,
                         const torch::Tensor& scale, const torch::Tensor& shift,
                         const GroupNormConfig& config, const Dropout& dropout);

namespace reference {
torch::Tensor group_norm(const torch::Tensor& x, const torch::Tensor& scale,
                         const torch::Tensor& shift, const GroupNormConfig& config);
}  // namespace reference

}  // namespace ddaebm::ops
