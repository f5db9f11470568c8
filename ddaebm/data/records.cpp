#include "ddaebm/data/records.h"

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <vector>

#include <zlib.h>

#include "ddaebm/error.h"
#include "ddaebm/io/bytes.h"
#include "ddaebm/io/file.h"
#include "ddaebm/io/npy.h"

namespace ddaebm {
namespace {

namespace fs = std::filesystem;

// Reads a file that may be gzipped; zlib finds out itself.
class GzipFile {
 public:
  explicit GzipFile(const fs::path& path) : path_(path), file_(gzopen(path.c_str(), "rb")) {
    if (!file_) fail("{}: cannot open", path.string());
  }
  // As many bytes as there are, up to size.
  size_t read(uint8_t* to, size_t size) {
    size_t have = 0;
    while (have < size) {
      const auto piece = static_cast<unsigned>(std::min<size_t>(size - have, 1U << 30));
      const int got = gzread(file_.get(), to + have, piece);
      if (got < 0) {
        int code = 0;
        const char* reason = gzerror(file_.get(), &code);
        if (code == Z_BUF_ERROR) break;  // cut short
        fail("{}: cannot be unpacked: {}; fetch it again", path_.string(), reason);
      }
      if (got == 0) break;
      have += static_cast<size_t>(got);
    }
    return have;
  }

 private:
  const fs::path& path_;
  std::unique_ptr<gzFile_s, decltype([](gzFile file) { gzclose(file); })> file_;
};

}  // namespace

torch::Tensor read_idx(const fs::path& path) {
  // zero, zero, type (8: bytes), number of dimensions; then each dimension, 4 bytes, big endian.
  const auto packed_bytes = static_cast<uint64_t>(fs::file_size(path));
  GzipFile file(path);
  std::array<uint8_t, 4> magic{};
  if (file.read(magic.data(), magic.size()) != magic.size() || magic[0] != 0 || magic[1] != 0) {
    fail("{}: not an IDX file", path.string());
  }
  if (magic[2] != 8 || magic[3] < 1 || magic[3] > 4) {
    fail("{}: IDX of type {} with {} dimensions; expected bytes (8) with 1 to 4", path.string(),
         magic[2], magic[3]);
  }
  std::vector<int64_t> shape(magic[3]);
  for (int64_t& size : shape) {
    std::array<uint8_t, 4> digits{};
    if (file.read(digits.data(), digits.size()) != digits.size()) {
      fail("{}: the IDX header is cut short", path.string());
    }
    size = int64_t{digits[0]} << 24 | digits[1] << 16 | digits[2] << 8 | digits[3];
  }
  const auto wanted = packed_size(shape, torch::kUInt8);
  // Deflate shrinks to a thousandth at best, so a larger claim is not even tried.
  constexpr uint64_t kMaxRatio = 1100;
  if (!wanted || *wanted > kMaxRatio * packed_bytes) {
    fail("{}: the header says {} bytes of data, the file has {}; is it cut short?", path.string(),
         fmt::join(shape, " x "), packed_bytes);
  }
  torch::Tensor data = torch::empty(shape, torch::kUInt8);
  const size_t have = file.read(data.data_ptr<uint8_t>(), *wanted);
  if (have != *wanted) {
    fail("{}: {} bytes of data, the header says {}; it is cut short, fetch it again", path.string(),
         have, *wanted);
  }
  uint8_t beyond = 0;  // meets the end, where gzip's checksum is compared
  if (file.read(&beyond, 1) != 0) {
    fail("{}: more data than the {} bytes that the header says", path.string(), *wanted);
  }
  return data;
}

std::pair<torch::Tensor, torch::Tensor> read_cifar_binary(const fs::path& path) {
  constexpr int64_t kPixels = int64_t{3} * 32 * 32;
  const std::string bytes = read_file(path);
  const auto size = static_cast<int64_t>(bytes.size());
  int64_t labels = 0;
  for (const int64_t candidate : {1, 2}) {
    if (labels == 0 && size > 0 && size % (kPixels + candidate) == 0) labels = candidate;
  }
  if (labels == 0) {
    fail(
        "{}: {} bytes are {} records of 3073 (CIFAR-10) and {} over, or {} of 3074 (CIFAR-100) and "
        "{} over; is it cut short?",
        path.string(), size, size / (kPixels + 1), size % (kPixels + 1), size / (kPixels + 2),
        size % (kPixels + 2));
  }
  const auto records =
      from_packed(bytes, {size / (kPixels + labels), kPixels + labels}, torch::kUInt8);
  return {records.slice(1, labels).reshape({-1, 3, 32, 32}).contiguous(),
          records.select(1, labels - 1).to(torch::kLong)};
}

bool is_image_npy(const fs::path& path) {
  const auto array = read_npy(path);
  return array.scalar_type() == torch::kUInt8 && array.dim() == 4;
}

torch::Tensor read_image_npy(const fs::path& path) {
  auto array = read_npy(path);
  const auto is_channels = [&](int64_t axis) {
    return array.size(axis) == 1 || array.size(axis) == 3;
  };
  if (array.scalar_type() == torch::kUInt8 && array.dim() == 4 && array.numel() > 0) {
    if (is_channels(1)) return array;
    if (is_channels(3)) return array.permute({0, 3, 1, 2}).contiguous();
  }
  fail("{}: {} of shape {}; expected uint8 images [N, C, H, W] or [N, H, W, C], C = 1 or 3",
       path.string(), c10::toString(array.scalar_type()), fmt::join(array.sizes(), " x "));
}

}  // namespace ddaebm
