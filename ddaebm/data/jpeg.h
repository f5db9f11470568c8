#pragma once

#include <torch/types.h>

namespace ddaebm {

// Images uint8 [N, 3, H, W], each encoded as JPEG (quality 75, colours at half the resolution, as
// most programs do it unasked) and decoded again.
torch::Tensor through_jpeg(const torch::Tensor& images);

}  // namespace ddaebm
