#pragma once

#include <torch/types.h>

namespace ddaebm::ops {

// One head of attention over the pixels of each image x [N, C, H, W]: with q, k and v the three
// parts of x map + bias, softmax(q k^T) v out. map [C, 3 C], bias [3 C], out [C, C]. Twice
// differentiable in all of them.
torch::Tensor attention(const torch::Tensor& x, const torch::Tensor& map, const torch::Tensor& bias,
                        const torch::Tensor& out);

namespace reference {
torch::Tensor attention(const torch::Tensor& x, const torch::Tensor& map, const torch::Tensor& bias,
                        const torch::Tensor& out);
}  // namespace reference

}  // namespace ddaebm::ops
