#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

namespace ddaebm {

// Keeps a folder for one process: an Error where another has it. Held until destroyed, or until the
// process ends in whatever way; one that is killed leaves the file `.lock`, which holds nobody up.
class FolderLock {
 public:
  explicit FolderLock(const std::filesystem::path& folder);
  // Nothing where another process has it.
  static std::unique_ptr<FolderLock> unless_taken(const std::filesystem::path& folder);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  FolderLock() = default;
  // Returns what is known of the process that has it, or nothing once it is ours.
  std::optional<std::string> take(const std::filesystem::path& folder);

  std::filesystem::path path_;
  int file_ = -1;
};

}  // namespace ddaebm
