#pragma once

#include <tuple>

#include <torch/types.h>

#include "ddaebm/ops/group_norm.h"
#include "ddaebm/ops/resample.h"

// The arithmetic of the image operators without autograd. On a GPU each is one kernel, images in
// either layout (contiguous or channels last), float32, float64 or bfloat16 with sums in float32.
namespace ddaebm::ops::kernels {

// What a group norm was given and found: x [N, C, H, W], scale and shift [N, C], and each group's
// mean and one over its deviation, [N, G].
struct GroupNormParts {
  torch::Tensor x, scale, shift, mean, inverse;
};

// y, mean, inverse.
std::tuple<torch::Tensor, torch::Tensor, torch::Tensor> group_norm_forward(
    const torch::Tensor& x, const torch::Tensor& scale, const torch::Tensor& shift,
    const GroupNormConfig& config);

struct GroupNormGradients {
  torch::Tensor x, scale, shift;
};
GroupNormGradients group_norm_backward(const torch::Tensor& gy, const GroupNormParts& parts,
                                       const GroupNormConfig& config);

// The gradients of <cotangents, group_norm_backward(gy, parts)>. A cotangent may be undefined:
// zero.
struct GroupNormSecondGradients {
  torch::Tensor gy, x, scale, shift;
};
GroupNormSecondGradients group_norm_backward_twice(const GroupNormGradients& cotangents,
                                                   const torch::Tensor& gy,
                                                   const GroupNormParts& parts,
                                                   const GroupNormConfig& config);

}  // namespace ddaebm::ops::kernels
