#pragma once

#include <filesystem>
#include <map>
#include <string>

#include <torch/types.h>

namespace ddaebm {

// The one checkpoint format: named tensors and free text, readable by Python's `safetensors`.
struct Safetensors {
  std::map<std::string, torch::Tensor> tensors;
  std::map<std::string, std::string> metadata;
};

// Tensors come back on the CPU in their stored type. The file is not trusted: every size and offset
// is checked before it is used.
Safetensors read_safetensors(const std::filesystem::path& path);

// Atomic, as write_file. Tensors of any device and layout; stored contiguous.
void write_safetensors(const std::filesystem::path& path, const Safetensors& content);

}  // namespace ddaebm
