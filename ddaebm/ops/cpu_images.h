#pragma once

#include <tuple>

#include <torch/types.h>

#include "ddaebm/ops/image_kernels.h"

// The image kernels of image_kernels.h on a CPU, channels last: float32 and float64, sums over
// pixels in float64. Norms have no dropout.
namespace ddaebm::ops::cpu {

// Whether the kernels take these images; a trace sees LibTorch's operators instead.
bool takes(const torch::Tensor& x);

torch::Tensor group_norm_forward(kernels::GroupNormParts& parts, const GroupNormConfig& config);
kernels::GroupNormGradients group_norm_backward(const torch::Tensor& gy,
                                                const kernels::GroupNormParts& parts,
                                                const GroupNormConfig& config, bool channels_wanted,
                                                const torch::Tensor& more);
// For a cotangent v of the input's gradient alone.
kernels::GroupNormSecondGradients group_norm_backward_twice(const torch::Tensor& v,
                                                            const torch::Tensor& gy,
                                                            const kernels::GroupNormParts& parts,
                                                            const GroupNormConfig& config);
torch::Tensor scaled_sum(const torch::Tensor& a, const torch::Tensor& b, const torch::Tensor& bias,
                         double gain);
// What a GPU's norms do at last: the same elements of it are dropped, in memory's order, where
// channels are even.
torch::Tensor drop(const torch::Tensor& x, const Dropout& dropout);
torch::Tensor concatenate(const torch::Tensor& a, const torch::Tensor& b);
torch::Tensor fir(const torch::Tensor& x, int64_t out_height, int64_t out_width,
                  const kernels::FirSteps& steps);

}  // namespace ddaebm::ops::cpu
