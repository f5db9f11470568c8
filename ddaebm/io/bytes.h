#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <torch/types.h>

// What the readers and writers of this folder share.
namespace ddaebm {

// Text from a file, quoted, escaped and cut so that an error message stays one short line.
std::string excerpt(std::string_view text);

// Bytes of a packed array. Nothing where no tensor can have the shape: a negative size, more than
// 32 dimensions, or a product beyond int64.
std::optional<uint64_t> packed_size(const std::vector<int64_t>& shape, torch::ScalarType type);

// Copies `bytes`, which are as many as packed_size says.
torch::Tensor from_packed(std::string_view bytes, const std::vector<int64_t>& shape,
                          torch::ScalarType type);

// The tensor on the CPU, contiguous; then a view of its bytes.
torch::Tensor packed(const torch::Tensor& tensor);
std::string_view bytes_of(const torch::Tensor& packed_tensor);

}  // namespace ddaebm
