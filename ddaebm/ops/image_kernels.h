#pragma once

#include <tuple>

#include <torch/types.h>

#include "ddaebm/ops/group_norm.h"
#include "ddaebm/ops/resample.h"

// The arithmetic of the image operators without autograd. On a GPU each is one kernel, images in
// either layout (contiguous or channels last), float32, float64 or bfloat16 with sums in float32.
namespace ddaebm::ops::kernels {

// What a group norm was given and found: x [N, C, H, W], scale and shift [N, C], and each group's
// mean and one over its deviation, [N, G]. What is added to x, [N, C], and dropout are for a GPU
// alone and may be missing.
struct GroupNormParts {
  torch::Tensor x, scale, shift, mean, inverse, add;
  Dropout dropout;
};

// Fills mean and inverse, returns y.
torch::Tensor group_norm_forward(GroupNormParts& parts, const GroupNormConfig& config);

// In x, with `more` added to it where that is defined, and in scale, shift and what is added:
// channels [3, N, C], undefined where not `wanted`; its third part means nothing where nothing is
// added.
struct GroupNormGradients {
  torch::Tensor x, channels;
};
GroupNormGradients group_norm_backward(const torch::Tensor& gy, const GroupNormParts& parts,
                                       const GroupNormConfig& config, bool channels_wanted,
                                       const torch::Tensor& more = {});

// Directions in which group_norm_backward's results are differentiated; undefined: zero.
struct GroupNormCotangents {
  torch::Tensor x, scale, shift;
};
// The gradients of <cotangents, group_norm_backward(gy, parts)>.
struct GroupNormSecondGradients {
  torch::Tensor gy, x, channels;
};
GroupNormSecondGradients group_norm_backward_twice(const GroupNormCotangents& cotangents,
                                                   const torch::Tensor& gy,
                                                   const GroupNormParts& parts,
                                                   const GroupNormConfig& config);

}  // namespace ddaebm::ops::kernels
