#pragma once

#include <torch/types.h>

namespace ddaebm::ops {

// Images of twice or half the size, x [N, C, H, W]. `fir` smooths with (1, 3, 3, 1) along both
// axes, zeros beyond the borders; `box` repeats and averages. Each is linear and, but for a factor
// of four, the other's transpose: its every derivative is a resampling again.
enum class Filter { fir, box };
torch::Tensor upsample(const torch::Tensor& x, Filter filter);
torch::Tensor downsample(const torch::Tensor& x, Filter filter);

// The smoothing alone, one pixel larger in both directions: [N, C, H + 1, W + 1]. What a 3x3
// convolution of stride 2 needs in front of it.
torch::Tensor smooth(const torch::Tensor& x);

namespace reference {
torch::Tensor upsample(const torch::Tensor& x, Filter filter);
torch::Tensor downsample(const torch::Tensor& x, Filter filter);
torch::Tensor smooth(const torch::Tensor& x);
}  // namespace reference

}  // namespace ddaebm::ops
