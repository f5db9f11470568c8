#pragma once

#include <tuple>

#include <torch/types.h>

#include "ddaebm/ops/group_norm.h"
#include "ddaebm/ops/resample.h"

// The arithmetic of the image operators without autograd. On a GPU each is one kernel, images in
// either layout (contiguous or channels last), float32, float64 or bfloat16 with sums in float32.
namespace ddaebm::ops::kernels {

// Whether there are kernels for these images. Group norms go without: the functions below then call
// LibTorch's operators.
bool takes(const torch::Tensor& x);

// What a group norm was given and found: x [N, C, H, W], scale and shift [N, C], and each group's
// mean and one over its deviation, [N, G]. What is added to x, [N, C], is for kernels alone,
// dropout for a GPU's; both may be missing.
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

// The others are for images that kernels take.

// (a + b + bias) gain; bias [N, C].
torch::Tensor scaled_sum(const torch::Tensor& a, const torch::Tensor& b, const torch::Tensor& bias,
                         double gain);
// g gain, and its sums over pixels [N, C].
std::tuple<torch::Tensor, torch::Tensor> scaled_with_sums(const torch::Tensor& g, double gain);
// Channels side by side, and back.
torch::Tensor concatenate(const torch::Tensor& a, const torch::Tensor& b);
std::tuple<torch::Tensor, torch::Tensor> separate(const torch::Tensor& whole, int64_t first);

// FIR with taps (1, 3, 3, 1) / 8 along both axes: the image gets up - 1 zeros behind each pixel and
// `pad` zeros before all; every down-th place is an output.
struct FirSteps {
  int up = 1, down = 1, pad = 0;
  double gain = 1.0;
};
torch::Tensor fir(const torch::Tensor& x, int64_t out_height, int64_t out_width,
                  const FirSteps& steps);

}  // namespace ddaebm::ops::kernels
