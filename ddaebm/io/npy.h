#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <torch/types.h>

namespace ddaebm {

// NumPy arrays: bool, int8..int64, uint8, float16, float32, float64, little endian, C or Fortran
// order.
torch::Tensor read_npy(const std::filesystem::path& path);
void write_npy(const std::filesystem::path& path, const torch::Tensor& tensor);
// The same of a file's bytes; `where` stands in errors.
torch::Tensor parse_npy(const std::string& where, std::string_view bytes);
std::string format_npy(const std::string& where, const torch::Tensor& tensor);

// Every array of an archive (stored or deflated, 16 GiB of arrays at most), by its name without
// ".npy". Written stored, as numpy.savez does.
std::map<std::string, torch::Tensor> read_npz(const std::filesystem::path& path);
void write_npz(const std::filesystem::path& path,
               const std::map<std::string, torch::Tensor>& arrays);

// The tensor type of NumPy's "<f4", say; nothing where there is none, or it is big endian.
std::optional<torch::ScalarType> numpy_type(std::string_view descr);
// Copies `bytes`, which are as many as packed_size says.
torch::Tensor from_numpy(std::string_view bytes, std::vector<int64_t> shape, torch::ScalarType type,
                         bool fortran_order);

}  // namespace ddaebm
