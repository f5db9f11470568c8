#include "ddaebm/io/lock.h"

#include <cerrno>
#include <cstring>
#include <string>

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include "ddaebm/error.h"

namespace ddaebm {

FolderLock::FolderLock(const std::filesystem::path& folder)
    : file_(::open((folder / ".lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666)) {
  if (file_ < 0) fail("{}: cannot write there: {}", folder.string(), std::strerror(errno));
  if (::flock(file_, LOCK_EX | LOCK_NB) != 0) {
    const int error = errno;
    std::string owner(20, '\0');
    const auto got = ::pread(file_, owner.data(), owner.size(), 0);
    owner.resize(got > 0 ? static_cast<size_t>(got) : 0);
    ::close(file_);
    if (error != EWOULDBLOCK) fail("{}: cannot be locked: {}", folder.string(), strerror(error));
    fail("{}: process {} trains there; wait for it, or choose another --out", folder.string(),
         owner);
  }
  const std::string owner = std::to_string(::getpid());
  // Only for the message above.
  if (::ftruncate(file_, 0) != 0 || ::pwrite(file_, owner.data(), owner.size(), 0) < 0) return;
}

FolderLock::~FolderLock() { ::close(file_); }

}  // namespace ddaebm
