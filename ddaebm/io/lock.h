#pragma once

#include <filesystem>

namespace ddaebm {

// Keeps a folder for one process: an Error where another has it. Held until destroyed, or until the
// process ends in whatever way; the file `.lock` stays.
class FolderLock {
 public:
  explicit FolderLock(const std::filesystem::path& folder);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  int file_;
};

}  // namespace ddaebm
