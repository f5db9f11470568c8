#pragma once

#include <filesystem>
#include <map>
#include <string>

#include <torch/types.h>

namespace ddaebm {

// NumPy arrays: bool, int8..int64, uint8, float16, float32, float64, little endian, C or Fortran
// order.
torch::Tensor read_npy(const std::filesystem::path& path);
void write_npy(const std::filesystem::path& path, const torch::Tensor& tensor);

// Every array of an archive (stored or deflated, 16 GiB of arrays at most), by its name without
// ".npy". Written stored, as numpy.savez does.
std::map<std::string, torch::Tensor> read_npz(const std::filesystem::path& path);
void write_npz(const std::filesystem::path& path,
               const std::map<std::string, torch::Tensor>& arrays);

}  // namespace ddaebm
