#include "ddaebm/io/file.h"

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ddaebm/error.h"

namespace ddaebm {
namespace {

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  bool valid() const { return fd_ >= 0; }
  int get() const { return fd_; }

 private:
  int fd_;
};

// The system call again for as long as a signal cuts it short.
template <class Call>
auto uninterrupted(Call call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

[[noreturn]] void fail_with_errno(const std::filesystem::path& path, const char* what) {
  const int error = errno;
  fail("{}: {}: {}", path.string(), what, std::strerror(error));
}

constexpr std::string_view kTemporary = ".ddaebm-";
constexpr std::string_view kTemporaryEnd = ".tmp";

// A file that is removed again unless it is renamed.
class TemporaryFile {
 public:
  explicit TemporaryFile(int folder) : folder_(folder), file_(create()) {}
  ~TemporaryFile() {
    if (file_.valid() && !renamed_) ::unlinkat(folder_, name_.c_str(), 0);
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  bool valid() const { return file_.valid(); }

  bool write(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t written =
          uninterrupted([&] { return ::write(file_.get(), bytes.data(), bytes.size()); });
      if (written < 0) return false;
      bytes.remove_prefix(static_cast<size_t>(written));
    }
    return uninterrupted([&] { return ::fsync(file_.get()); }) == 0;
  }

  bool rename(const std::filesystem::path& name) {
    renamed_ = ::renameat(folder_, name_.c_str(), folder_, name.c_str()) == 0;
    return renamed_;
  }

 private:
  // Tries on where a name is taken: a killed process with the same number may have left its file.
  int create() {
    static std::atomic<unsigned> counter{0};
    int fd = -1;
    do {
      name_ = fmt::format("{}{}-{}{}", kTemporary, ::getpid(), counter++, kTemporaryEnd);
      fd = uninterrupted([&] {
        return ::openat(folder_, name_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
      });
    } while (fd < 0 && errno == EEXIST);
    return fd;
  }

  int folder_;
  std::string name_;
  Descriptor file_;
  bool renamed_ = false;
};

}  // namespace

std::string read_file(const std::filesystem::path& path) {
  // O_NONBLOCK: opening a pipe must not wait for its writer.
  const Descriptor file(
      uninterrupted([&] { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK); }));
  if (!file.valid()) fail_with_errno(path, "cannot open");
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) fail_with_errno(path, "cannot read");
  if (S_ISDIR(status.st_mode)) fail("{}: is a folder, a file is wanted", path.string());
  if (!S_ISREG(status.st_mode)) fail("{}: is a device or a pipe, a file is wanted", path.string());

  std::string bytes(static_cast<size_t>(status.st_size), '\0');
  size_t have = 0;
  while (have < bytes.size()) {
    const ssize_t got =
        uninterrupted([&] { return ::read(file.get(), bytes.data() + have, bytes.size() - have); });
    if (got < 0) fail_with_errno(path, "cannot read");
    if (got == 0) break;  // it shrank meanwhile
    have += static_cast<size_t>(got);
  }
  bytes.resize(have);
  return bytes;
}

void write_file(const std::filesystem::path& path, std::string_view bytes) {
  if (!path.has_filename()) fail("{}: names no file to write", path.string());
  const std::filesystem::path parent = path.has_parent_path() ? path.parent_path() : ".";
  const Descriptor folder(
      uninterrupted([&] { return ::open(parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); }));
  if (!folder.valid()) fail_with_errno(path, "cannot open its folder");

  TemporaryFile temporary(folder.get());
  if (!temporary.valid()) fail_with_errno(path, "cannot create a file in its folder");
  if (!temporary.write(bytes)) fail_with_errno(path, "cannot write");
  if (!temporary.rename(path.filename())) fail_with_errno(path, "cannot replace");
  // EINVAL: a file system that has no such thing as flushing a folder.
  if (uninterrupted([&] { return ::fsync(folder.get()); }) != 0 && errno != EINVAL) {
    fail_with_errno(path, "is written, but its folder cannot be flushed to disk");
  }
}

void remove_temporary_files(const std::filesystem::path& folder) {
  std::error_code ignored;  // one that stays costs only space
  for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(kTemporary) && name.ends_with(kTemporaryEnd)) {
      std::filesystem::remove(entry.path(), ignored);
    }
  }
}

}  // namespace ddaebm
