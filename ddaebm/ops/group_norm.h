#pragma once

#include <torch/types.h>

namespace ddaebm::ops {

// y = scale norm(x) + shift, and silu(y) = y sigmoid(y) where asked for; x [N, C, H, W] is
// normalised over each image's groups of C / groups channels. scale and shift are [C], or [N, C]
// for a norm that adapts to each image. Twice differentiable in all three.
struct GroupNormConfig {
  int64_t groups = 1;
  bool silu = true;
  double eps = 1e-6;
};
torch::Tensor group_norm(const torch::Tensor& x, const torch::Tensor& scale,
                         const torch::Tensor& shift, const GroupNormConfig& config);

namespace reference {
torch::Tensor group_norm(const torch::Tensor& x, const torch::Tensor& scale,
                         const torch::Tensor& shift, const GroupNormConfig& config);
}  // namespace reference

}  // namespace ddaebm::ops
