#include "ddaebm/io/file.h"

#include <csignal>
#include <fstream>
#include <iterator>

#include "temp_dir.h"
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "ddaebm/error.h"

namespace ddaebm {
namespace {

std::ptrdiff_t count_files(const std::filesystem::path& folder) {
  return std::distance(std::filesystem::directory_iterator(folder), {});
}

std::string message_of(const std::filesystem::path& path) {
  try {
    read_file(path);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(File, ReadsBackWhatWasWritten) {
  const TempDir folder;
  const auto path = folder.path() / "bytes";
  const std::string bytes("a\0b\n\xff", 5);
  write_file(path, bytes);
  EXPECT_EQ(read_file(path), bytes);
  write_file(path, "");
  EXPECT_EQ(read_file(path), "");
  EXPECT_EQ(count_files(folder.path()), 1);
}

TEST(File, ReadErrorsNamePathAndReason) {
  const TempDir folder;
  const auto missing = folder.path() / "missing";
  EXPECT_EQ(message_of(missing), missing.string() + ": cannot open: No such file or directory");
  EXPECT_EQ(message_of(folder.path()), folder.path().string() + ": is a folder, a file is wanted");
  const auto pipe = folder.path() / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_EQ(message_of(pipe), pipe.string() + ": is a device or a pipe, a file is wanted");
}

TEST(File, WriteErrorsLeaveNothingBehind) {
  const TempDir folder;
  EXPECT_THROW(write_file(folder.path() / "missing" / "file", "x"), Error);
  EXPECT_THROW(write_file("", "x"), Error);
  std::filesystem::create_directory(folder.path() / "taken");
  EXPECT_THROW(write_file(folder.path() / "taken", "x"), Error);
  EXPECT_EQ(count_files(folder.path()), 1);
}

TEST(File, PassesOverATemporaryFileOfAnotherProcess) {
  const TempDir folder;
  for (int i = 0; i < 100; ++i) {
    std::ofstream(folder.path() / fmt::format(".ddaebm-{}-{}.tmp", ::getpid(), i)) << "left over";
  }
  write_file(folder.path() / "file", "new");
  EXPECT_EQ(read_file(folder.path() / "file"), "new");
  EXPECT_EQ(count_files(folder.path()), 101);
}

// A limit on file size stands in for a full disk: the write comes out short, then fails.
TEST(File, FailedWriteKeepsTheOldContent) {
  const TempDir folder;
  const auto path = folder.path() / "file";
  write_file(path, "old");
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{1000, 1000};
    if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) ::_exit(2);
    try {
      write_file(path, std::string(5000, 'x'));
    } catch (const Error& error) {
      ::_exit(error.what() == path.string() + ": cannot write: File too large" ? 0 : 3);
    }
    ::_exit(4);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_EQ(read_file(path), "old");
  EXPECT_EQ(count_files(folder.path()), 1);
}

}  // namespace
}  // namespace ddaebm
