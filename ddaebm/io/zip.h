#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace ddaebm {

// The entries of a zip archive, stored or deflated. What it claims is not believed: an entry is
// unpacked only where its packed bytes can give its size, and all that is read takes 16 GiB at
// most.
class ZipReader {
 public:
  explicit ZipReader(const std::filesystem::path& path);
  ~ZipReader();

  // In the archive's order, each once.
  const std::vector<std::string>& names() const { return names_; }
  bool contains(const std::string& name) const { return entries_.contains(name); }
  // Its size unpacked, as the archive claims it. The entry must be there.
  uint64_t size(const std::string& name) const { return entries_.at(name).size; }
  std::string read(const std::string& name);

 private:
  struct Entry {
    uint64_t index;
    uint64_t size;
    uint64_t packed_size;
    bool deflated;
    bool readable;  // packed in a way that we know
  };
  struct Archive;

  std::filesystem::path path_;
  uint64_t file_size_ = 0;
  uint64_t unpacked_ = 0;
  std::unique_ptr<Archive> archive_;
  std::vector<std::string> names_;
  std::map<std::string, Entry> entries_;
};

}  // namespace ddaebm
