#pragma once

#include <filesystem>

namespace ddaebm {

// Keeps a folder for one process: an Error where another has it. Held until destroyed, or until the
// process ends in whatever way; one that is killed leaves the file `.lock`, which holds nobody up.
class FolderLock {
 public:
  explicit FolderLock(const std::filesystem::path& folder);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  std::filesystem::path path_;
  int file_ = -1;
};

}  // namespace ddaebm
