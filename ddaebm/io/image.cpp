#include "ddaebm/io/image.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <string_view>

#include "ddaebm/error.h"
#include "ddaebm/io/bytes.h"
#include "ddaebm/io/file.h"

#define STB_IMAGE_IMPLEMENTATION
#define STB_IMAGE_STATIC
#define STBI_ONLY_PNG
#define STBI_NO_STDIO
#define STB_IMAGE_WRITE_IMPLEMENTATION
#define STB_IMAGE_WRITE_STATIC
#define STBI_WRITE_NO_STDIO
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-function"
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"
#include <stb/stb_image.h>
#include <stb/stb_image_write.h>
#pragma GCC diagnostic pop

namespace ddaebm {
namespace {

constexpr int64_t kMaxPixels = int64_t{64} << 20;
constexpr int kChannels = 3;

// stb allocates as much as a chunk claims to hold, so the claims are compared with the file first.
// A chunk: length (4 bytes, big endian), name (4), that many bytes, checksum (4).
bool is_whole_png(std::string_view file) {
  constexpr std::string_view kSignature = "\x89PNG\r\n\x1a\n";
  constexpr size_t kChunkFrame = 12;
  if (!file.starts_with(kSignature)) return false;
  file.remove_prefix(kSignature.size());
  while (file.size() >= kChunkFrame) {
    size_t length = 0;
    for (const char byte : file.substr(0, 4)) {
      length = length << 8 | static_cast<unsigned char>(byte);
    }
    if (length > file.size() - kChunkFrame) return false;
    if (file.substr(4, 4) == "IEND") return true;
    file.remove_prefix(kChunkFrame + length);
  }
  return false;
}

}  // namespace

std::string encode_png(const torch::Tensor& picture) {
  TORCH_CHECK(picture.dim() == 3 && picture.size(2) == kChannels && picture.numel() > 0 &&
                  picture.scalar_type() == torch::kUInt8,
              "encode_png: uint8 [height, width, 3] is wanted, not ", picture.scalar_type(), " ",
              picture.sizes());
  TORCH_CHECK(picture.numel() / kChannels <= kMaxPixels, "encode_png: more than 64 megapixels");
  const torch::Tensor pixels = packed(picture);
  const int height = static_cast<int>(pixels.size(0));
  const int width = static_cast<int>(pixels.size(1));
  std::string png;
  const auto append = [](void* target, void* data, int size) {
    static_cast<std::string*>(target)->append(static_cast<const char*>(data),
                                              static_cast<size_t>(size));
  };
  const int written = stbi_write_png_to_func(append, &png, width, height, kChannels,
                                             pixels.data_ptr(), width * kChannels);
  TORCH_CHECK(written != 0, "encode_png: out of memory");
  return png;
}

void write_png(const std::filesystem::path& path, const torch::Tensor& picture) {
  write_file(path, encode_png(picture));
}

torch::Tensor read_png(const std::filesystem::path& path) {
  const std::string file = read_file(path);
  const auto* bytes = reinterpret_cast<const stbi_uc*>(file.data());
  const int size = static_cast<int>(file.size());
  int width = 0;
  int height = 0;
  int stored_channels = 0;
  if (file.size() > std::numeric_limits<int>::max() || !is_whole_png(file) ||
      stbi_info_from_memory(bytes, size, &width, &height, &stored_channels) == 0) {
    fail("{}: not a PNG picture, or cut short", path.string());
  }
  if (int64_t{width} * height > kMaxPixels) {
    fail("{}: {} x {} pixels are more than 64 megapixels; scale it down", path.string(), width,
         height);
  }
  const std::unique_ptr<stbi_uc, decltype([](stbi_uc* data) { stbi_image_free(data); })> pixels(
      stbi_load_from_memory(bytes, size, &width, &height, &stored_channels, kChannels));
  if (!pixels) fail("{}: the PNG picture is damaged: {}", path.string(), stbi_failure_reason());
  return torch::from_blob(pixels.get(), {height, width, kChannels}, torch::kUInt8).clone();
}

torch::Tensor image_grid(const torch::Tensor& images, int64_t columns) {
  TORCH_CHECK(images.dim() == 4 && (images.size(1) == 1 || images.size(1) == kChannels) &&
                  images.numel() > 0 && images.scalar_type() == torch::kUInt8 && columns > 0,
              "image_grid: uint8 [N, 1 or 3, H, W] is wanted, not ", images.scalar_type(), " ",
              images.sizes());
  constexpr int64_t kGap = 2;
  const int64_t n = images.size(0);
  columns = std::min(columns, n);
  const int64_t rows = (n + columns - 1) / columns;
  const int64_t height = images.size(2) + kGap;
  const int64_t width = images.size(3) + kGap;
  auto grid =
      torch::full({rows * height - kGap, columns * width - kGap, kChannels}, 255, torch::kUInt8);
  const auto pixels = images.cpu().permute({0, 2, 3, 1});
  for (int64_t i = 0; i < n; ++i) {
    const int64_t top = i / columns * height;
    const int64_t left = i % columns * width;
    grid.slice(0, top, top + height - kGap).slice(1, left, left + width - kGap).copy_(pixels[i]);
  }
  return grid;
}

}  // namespace ddaebm
