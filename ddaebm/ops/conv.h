#pragma once

#include <torch/types.h>

namespace ddaebm::ops {

// Cross-correlation of x [N, C, H, W] with weight [K, C, h, w] plus bias [K] (undefined: none), the
// borders padded with zeros. Differentiable at will: the derivatives of a convolution, of its data
// gradient and of its weight gradient are again these three, so that a second derivative costs what
// a first one does.
struct ConvShape {
  int64_t stride = 1;
  int64_t padding = 0;
};
torch::Tensor conv2d(const torch::Tensor& x, const torch::Tensor& weight, const torch::Tensor& bias,
                     ConvShape shape);

namespace reference {
torch::Tensor conv2d(const torch::Tensor& x, const torch::Tensor& weight, const torch::Tensor& bias,
                     ConvShape shape);
}  // namespace reference

}  // namespace ddaebm::ops
