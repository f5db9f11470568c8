#pragma once

#include <vector>

#include <torch/types.h>

namespace ddaebm::ops {

// x's elements in the order in which `like`, of the same shape and without gaps, lies in memory:
// [numel]. No copy where x lies in that order already.
torch::Tensor in_order_of(const torch::Tensor& like, const torch::Tensor& x);

// Each tensor in another type, in its own memory order: one operation for all of them, and one for
// their gradients. Tensors that have the type already are given back as they are.
std::vector<torch::Tensor> cast_all(const std::vector<torch::Tensor>& tensors,
                                    torch::ScalarType type);

}  // namespace ddaebm::ops
