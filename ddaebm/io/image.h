#pragma once

#include <filesystem>
#include <string>

#include <torch/types.h>

namespace ddaebm {

// Pictures are uint8 [height, width, 3], red green blue, of 64 megapixels at most.
std::string encode_png(const torch::Tensor& picture);
void write_png(const std::filesystem::path& path, const torch::Tensor& picture);
torch::Tensor read_png(const std::filesystem::path& path);

// Images uint8 [N, C, H, W], C = 1 or 3, side by side from the top left, with thin white lines
// between them: one picture, `columns` wide (fewer where there are fewer images).
torch::Tensor image_grid(const torch::Tensor& images, int64_t columns);

}  // namespace ddaebm
