#pragma once

#include <filesystem>
#include <string>

#include <torch/types.h>

namespace ddaebm {

// Pictures are uint8 [height, width, 3], red green blue, of 64 megapixels at most.
std::string encode_png(const torch::Tensor& picture);
void write_png(const std::filesystem::path& path, const torch::Tensor& picture);
torch::Tensor read_png(const std::filesystem::path& path);

}  // namespace ddaebm
