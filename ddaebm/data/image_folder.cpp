#include <algorithm>
#include <array>
#include <cctype>
#include <string_view>
#include <utility>

#include "ddaebm/data/image_files.h"
#include "ddaebm/error.h"
#include "ddaebm/io/file.h"

namespace ddaebm {
namespace {

namespace fs = std::filesystem;

class PathList : public ImageFiles {
 public:
  explicit PathList(std::vector<fs::path> paths) : paths_(std::move(paths)) {}
  int64_t size() const override { return static_cast<int64_t>(paths_.size()); }
  std::string name(int64_t i) const override { return path(i).string(); }
  std::string bytes(int64_t i) const override {
    std::error_code ignored;  // what cannot be opened is read_file's to report
    const auto size = fs::file_size(path(i), ignored);
    if (!ignored && size > kMaxEncoded) fail("{} bytes are too many for a picture", size);
    return read_file(path(i));
  }

 private:
  const fs::path& path(int64_t i) const { return paths_.at(static_cast<size_t>(i)); }
  std::vector<fs::path> paths_;
};

}  // namespace

bool has_image_ending(const fs::path& path) {
  std::string ending = path.extension().string();
  std::transform(ending.begin(), ending.end(), ending.begin(), ::tolower);
  constexpr std::array<std::string_view, 4> kEndings = {".jpg", ".jpeg", ".png", ".webp"};
  return std::find(kEndings.begin(), kEndings.end(), ending) != kEndings.end();
}

std::unique_ptr<ImageFiles> open_image_list(std::vector<fs::path> paths) {
  return std::make_unique<PathList>(std::move(paths));
}

std::unique_ptr<ImageFiles> open_image_folder(const fs::path& folder) {
  std::vector<fs::path> paths;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (has_image_ending(entry.path()) && entry.is_regular_file()) paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  return open_image_list(std::move(paths));
}

}  // namespace ddaebm
