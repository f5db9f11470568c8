#include "ddaebm/io/bytes.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include <fmt/format.h>

namespace ddaebm {

static_assert(std::endian::native == std::endian::little, "the file formats are little endian");

std::string excerpt(std::string_view text) {
  constexpr size_t kShown = 60;
  return fmt::format("{:?}{}", text.substr(0, kShown), text.size() > kShown ? "..." : "");
}

std::optional<uint64_t> packed_size(const std::vector<int64_t>& shape, torch::ScalarType type) {
  constexpr size_t kMaxDimensions = 32;
  if (shape.size() > kMaxDimensions) return std::nullopt;
  // Strides are products that skip zeros, so those must not overflow in empty arrays either.
  int64_t stride = static_cast<int64_t>(c10::elementSize(type));
  for (const int64_t size : shape) {
    if (size < 0 || __builtin_mul_overflow(stride, std::max<int64_t>(size, 1), &stride)) {
      return std::nullopt;
    }
  }
  const bool empty = std::find(shape.begin(), shape.end(), 0) != shape.end();
  return empty ? 0 : static_cast<uint64_t>(stride);
}

torch::Tensor from_packed(std::string_view bytes, const std::vector<int64_t>& shape,
                          torch::ScalarType type) {
  // A bool that is neither 0 nor 1 is undefined behaviour, and a file can hold any byte.
  if (type == torch::kBool) return from_packed(bytes, shape, torch::kUInt8).ne(0);
  torch::Tensor tensor = torch::empty(shape, type);
  TORCH_CHECK(tensor.nbytes() == bytes.size(), "from_packed: bytes do not match the shape");
  if (!bytes.empty()) std::memcpy(tensor.data_ptr(), bytes.data(), bytes.size());
  return tensor;
}

torch::Tensor packed(const torch::Tensor& tensor) {
  return tensor.detach().to(torch::kCPU).contiguous();
}

std::string_view bytes_of(const torch::Tensor& packed_tensor) {
  return {static_cast<const char*>(packed_tensor.data_ptr()), packed_tensor.nbytes()};
}

}  // namespace ddaebm
