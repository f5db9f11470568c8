#pragma once

#include <torch/types.h>

namespace ddaebm::ops {

// x [N, K] beside sin(f x) and cos(f x) for each f of `frequencies` [W]: [N, K + 2 K W], all sines
// before all cosines, those of a column side by side. Differentiable at will in x.
torch::Tensor waves(const torch::Tensor& x, const torch::Tensor& frequencies);

namespace reference {
// The same in plain tensor operations.
torch::Tensor waves(const torch::Tensor& x, const torch::Tensor& frequencies);
}  // namespace reference

}  // namespace ddaebm::ops
