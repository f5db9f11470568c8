#pragma once

#include <cerrno>
#include <csignal>
#include <fstream>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "temp_dir.h"
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ddaebm/io/file.h"

namespace ddaebm {

// The command line program, run beside the test.
class App {
 public:
  struct Result {
    int code = -1;  // 128 + number where a signal ended it
    std::string out, err;
  };

  explicit App(std::vector<std::string> arguments, rlim_t largest_file = RLIM_INFINITY,
               int threads = 1) {
    arguments.insert(arguments.begin(), DDAEBM_APP);
    const auto pointers = [](std::vector<std::string>& texts) {
      std::vector<char*> all;
      for (auto& text : texts) all.push_back(text.data());
      all.push_back(nullptr);
      return all;
    };
    std::vector<std::string> variables = {"OMP_NUM_THREADS=" + std::to_string(threads)};
    // Several processes of several threads each would spin in each other's way.
    if (threads > 1) variables.emplace_back("OMP_WAIT_POLICY=passive");
    for (char** v = environ; *v != nullptr; ++v) {
      if (std::string(*v).rfind("OMP_", 0) != 0) variables.emplace_back(*v);
    }
    const auto argv = pointers(arguments);
    const auto envp = pointers(variables);
    const std::string out = (folder_.path() / "out").string();
    const std::string err = (folder_.path() / "err").string();
    // Before the child has opened them: it may be killed sooner.
    std::ofstream{out};
    std::ofstream{err};
    process_ = ::fork();
    if (process_ < 0) throw std::runtime_error("cannot fork");
    if (process_ > 0) return;
    // The child: nothing but system calls until exec.
    const auto redirect = [](const char* path, int to) {
      ::dup2(::open(path, O_WRONLY | O_CREAT | O_TRUNC, 0666), to);
    };
    redirect(out.c_str(), STDOUT_FILENO);
    redirect(err.c_str(), STDERR_FILENO);
    if (largest_file != RLIM_INFINITY) {
      ::signal(SIGXFSZ, SIG_IGN);  // so that write() fails, as on a full disk
      const rlimit limit{largest_file, largest_file};
      ::setrlimit(RLIMIT_FSIZE, &limit);
    }
    ::execve(DDAEBM_APP, argv.data(), envp.data());
    ::_exit(127);
  }
  ~App() {
    if (process_ <= 0) return;
    ::kill(process_, SIGKILL);
    wait();
  }
  App(const App&) = delete;
  App& operator=(const App&) = delete;

  // What it has printed so far.
  std::filesystem::path out_file() const { return folder_.path() / "out"; }
  pid_t process() const { return process_; }
  void signal(int number) const { ::kill(process_, number); }
  // Whether it has ended; wait() then returns at once.
  bool ended() const {
    siginfo_t info{};
    return ::waitid(P_PID, static_cast<id_t>(process_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
           info.si_pid != 0;
  }
  Result wait() {
    int status = 0;
    while (::waitpid(process_, &status, 0) < 0 && errno == EINTR) {
    }
    process_ = 0;
    return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status),
            read_file(folder_.path() / "out"), read_file(folder_.path() / "err")};
  }

 private:
  TempDir folder_;
  pid_t process_ = 0;
};

inline App::Result run_app(const std::vector<std::string>& arguments,
                           rlim_t largest_file = RLIM_INFINITY) {
  return App(arguments, largest_file).wait();
}

// Every file of a folder and what it holds.
inline std::map<std::string, std::string> snapshot(const std::filesystem::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) files[entry.path().string()] = read_file(entry.path());
  }
  return files;
}

}  // namespace ddaebm
