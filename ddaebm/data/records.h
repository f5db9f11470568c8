#pragma once

#include <filesystem>
#include <utility>

#include <torch/types.h>

namespace ddaebm {

// Bytes in IDX, MNIST's format, plain or gzipped; of the shape that the file says.
torch::Tensor read_idx(const std::filesystem::path& path);

// CIFAR's binary batches: pixels uint8 [N, 3, 32, 32] and labels int64 [N]; of CIFAR-100's two
// labels the fine one.
std::pair<torch::Tensor, torch::Tensor> read_cifar_binary(const std::filesystem::path& path);

// Whether a .npy file holds uint8 of four dimensions.
bool is_image_npy(const std::filesystem::path& path);
// Its pixels as [N, C, H, W]; [N, H, W, C] is turned.
torch::Tensor read_image_npy(const std::filesystem::path& path);

}  // namespace ddaebm
