#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <string_view>

#include <torch/types.h>

namespace ddaebm {

// CRC-32C (Castagnoli), as TensorFlow's records have it.
uint32_t crc32c(std::string_view bytes);

// A file that TensorBoard shows: scalars, pictures and histograms over iterations. Each record is
// whole in the file when the call that writes it returns. What cannot be written is an Error.
class EventFile {
 public:
  // A new file in the folder, named as TensorBoard expects. Of files that older parts of the run
  // left, TensorBoard forgets what lies at `first_step` and after.
  EventFile(const std::filesystem::path& folder, int64_t first_step);

  void scalar(const std::string& tag, int64_t step, double value);
  // uint8 [height, width, 3].
  void picture(const std::string& tag, int64_t step, const torch::Tensor& picture);
  // Thirty buckets of one width over the finite values; nothing where there are none.
  void histogram(const std::string& tag, int64_t step, std::span<const double> values);

  const std::filesystem::path& path() const { return path_; }

 private:
  void add_value(int64_t step, const std::string& value);
  void add_event(const std::string& event);

  std::filesystem::path path_;
  std::ofstream out_;
};

}  // namespace ddaebm
