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

// A tensor of 32 bytes, by its name the last of a file: SHA-256 of all bytes before it.
inline constexpr const char* kChecksum = "~sha256";

// Tensors come back on the CPU in their stored type. The file is not trusted: every size and offset
// is checked before it is used. A checksum that it brings must be right, and comes with the
// tensors.
Safetensors read_safetensors(const std::filesystem::path& path);

// Atomic, as write_file. Tensors of any device and layout; stored contiguous. With a checksum all
// names must stand before it.
void write_safetensors(const std::filesystem::path& path, const Safetensors& content,
                       bool with_checksum = false);

}  // namespace ddaebm
