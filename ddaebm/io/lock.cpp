#include "ddaebm/io/lock.h"

#include <cerrno>
#include <cstring>
#include <string>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ddaebm/error.h"

namespace ddaebm {

namespace {

// Whether the file that is open is still the one at the path: its last owner may have removed it
// between our opening and locking it.
bool is_at(int file, const std::filesystem::path& path) {
  struct stat opened {
  }, there{};
  return ::fstat(file, &opened) == 0 && ::stat(path.c_str(), &there) == 0 &&
         opened.st_dev == there.st_dev && opened.st_ino == there.st_ino;
}

}  // namespace

std::optional<std::string> FolderLock::take(const std::filesystem::path& folder) {
  path_ = folder / ".lock";
  for (;;) {
    file_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (file_ < 0) fail("{}: cannot write there: {}", folder.string(), std::strerror(errno));
    if (::flock(file_, LOCK_EX | LOCK_NB) == 0) {
      if (is_at(file_, path_)) break;
      ::close(file_);
      continue;
    }
    const int error = errno;
    std::string owner(20, '\0');
    const auto got = ::pread(file_, owner.data(), owner.size(), 0);
    owner.resize(got > 0 ? static_cast<size_t>(got) : 0);
    ::close(file_);
    file_ = -1;
    if (error != EWOULDBLOCK) fail("{}: cannot be locked: {}", folder.string(), strerror(error));
    return owner;
  }
  const std::string owner = std::to_string(::getpid());
  // Only for a message.
  (void)!::ftruncate(file_, 0);
  (void)!::pwrite(file_, owner.data(), owner.size(), 0);
  return {};
}

FolderLock::FolderLock(const std::filesystem::path& folder) {
  if (const auto owner = take(folder)) {
    fail("{}: process {} trains there; wait for it, or choose another --out", folder.string(),
         *owner);
  }
}

std::unique_ptr<FolderLock> FolderLock::unless_taken(const std::filesystem::path& folder) {
  std::unique_ptr<FolderLock> lock(new FolderLock());
  if (lock->take(folder)) lock.reset();
  return lock;
}

FolderLock::~FolderLock() {
  if (file_ < 0) return;
  ::unlink(path_.c_str());
  ::close(file_);
}

}  // namespace ddaebm
