#pragma once

#include <filesystem>
#include <utility>

#include <torch/types.h>

namespace ddaebm {

// A "python version" batch of CIFAR-10 or CIFAR-100, pickled by Python 2 or 3: pixels uint8
// [N, 3, 32, 32] and labels int64 [N], 0 to 9 or, of CIFAR-100, the fine ones, 0 to 99.
std::pair<torch::Tensor, torch::Tensor> read_cifar_python(const std::filesystem::path& path);

}  // namespace ddaebm
