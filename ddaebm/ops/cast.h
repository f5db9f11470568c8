#pragma once

#include <vector>

#include <torch/types.h>

namespace ddaebm::ops {

// The tensors xs laid end to end in one of the given type, [sum of sizes], each in the order in
// which its like in `likes`, of the same shape and without gaps, lies in memory. Where `onto` is
// given, they are added to it, and it is returned; else on a CPU they go `into` what is given, of
// the same type as xs, whose memory so need not be asked for again.
torch::Tensor end_to_end(const std::vector<torch::Tensor>& likes,
                         const std::vector<torch::Tensor>& xs, torch::ScalarType type,
                         const torch::Tensor& onto = {}, torch::Tensor into = {});
// Back: views of `flat` in the shapes and orders of `likes`.
std::vector<torch::Tensor> cut(const torch::Tensor& flat, const std::vector<torch::Tensor>& likes);

// Each tensor in another type, in its own memory order: one operation for all of them, and one for
// their gradients. Tensors that have the type already are given back as they are.
std::vector<torch::Tensor> cast_all(const std::vector<torch::Tensor>& tensors,
                                    torch::ScalarType type);

}  // namespace ddaebm::ops
