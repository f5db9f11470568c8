#include "ddaebm/dist/launch.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <thread>

#include <arpa/inet.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ddaebm/error.h"

namespace ddaebm {
namespace {

constexpr std::chrono::seconds kGrace{15};  // for the others, once a rank has died
constexpr std::chrono::milliseconds kPoll{20};

std::optional<int64_t> number(const Variable& variable, const char* name) {
  const char* text = variable(name);
  if (text == nullptr) return {};
  int64_t value = 0;
  const char* end = text + std::strlen(text);
  const auto [stopped, error] = std::from_chars(text, end, value);
  if (error != std::errc() || stopped != end || value < 0) {
    fail("the variable {} is '{}', expected a whole number", name, text);
  }
  return value;
}

// The first host of Slurm's "gpu[003-005,9],x1": gpu003.
std::string first_host(const std::string& list) {
  const size_t bracket = list.find_first_of("[,");
  if (bracket == std::string::npos || list[bracket] == ',') return list.substr(0, bracket);
  const size_t end = list.find_first_of("-,]", bracket);
  return list.substr(0, bracket) + list.substr(bracket + 1, end - bracket - 1);
}

// A port for one job on a machine where others may run.
int64_t port_of_job(std::string_view job) {
  uint64_t hash = 14695981039346656037U;
  for (const char c : job) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211U;
  return 20000 + static_cast<int64_t>(hash % 20000);
}

int64_t free_port() {
  const int probe = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  const bool found = probe >= 0 && ::bind(probe, generic, length) == 0 &&
                     ::getsockname(probe, generic, &length) == 0;
  if (probe >= 0) ::close(probe);
  if (!found) fail("no port of this machine can be had: {}", std::strerror(errno));
  return ntohs(address.sin_port);
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> all;
  for (auto& text : texts) all.push_back(text.data());
  all.push_back(nullptr);
  return all;
}

pid_t start(std::vector<std::string>& arguments, std::vector<std::string> variables) {
  for (char** v = environ; *v != nullptr; ++v) {
    const std::string_view there = *v;
    const auto name = there.substr(0, there.find('=') + 1);
    const bool replaced = std::any_of(variables.begin(), variables.end(),
                                      [&](const auto& ours) { return ours.starts_with(name); });
    if (!replaced) variables.emplace_back(there);
  }
  const auto argv = pointers(arguments);
  const auto envp = pointers(variables);
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  if (child < 0) fail("cannot start another process: {}", std::strerror(errno));
  if (child > 0) return child;
  // A group of its own: an interrupt from the terminal reaches it once, through us.
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() == parent) ::execve("/proc/self/exe", argv.data(), envp.data());
  ::_exit(127);
}

// One of `count`, with its part of the cores.
pid_t start_one_of(int64_t count, std::vector<std::string>& arguments,
                   std::vector<std::string> variables) {
  const auto cores = static_cast<int64_t>(std::thread::hardware_concurrency());
  if (std::getenv("OMP_NUM_THREADS") == nullptr) {
    variables.push_back(
        fmt::format("OMP_NUM_THREADS={}", std::clamp<int64_t>(cores / count, 1, 4)));
  }
  return start(arguments, std::move(variables));
}

// Passes on to them what `stop` receives. When one dies the others have as long as `grace` says, if
// it says something. Returns the exit code of the first that failed, else 0.
int wait_for_all(std::vector<pid_t> processes, const char* kind,
                 std::optional<std::chrono::seconds> grace, const std::atomic<int>& stop,
                 const std::function<void()>& meanwhile) {
  int code = 0;
  int passed_on = 0;
  auto left = processes.size();
  std::optional<std::chrono::steady_clock::time_point> deadline;
  while (left > 0) {
    const auto tell = [&](int signal) {
      for (const pid_t process : processes) {
        if (process > 0) ::kill(process, signal);
      }
    };
    if (stop != passed_on) tell(passed_on = stop);
    if (deadline && std::chrono::steady_clock::now() > *deadline) {
      deadline.reset();
      tell(SIGKILL);
    }
    int status = 0;
    const pid_t ended = ::waitpid(-1, &status, WNOHANG);
    const auto found = std::find(processes.begin(), processes.end(), ended);
    if (ended <= 0 || found == processes.end()) {
      if (meanwhile) meanwhile();
      std::this_thread::sleep_for(kPoll);
      continue;
    }
    *found = 0;
    --left;
    // One that has said what was wrong itself needs no word of ours, nor one that was asked to
    // stop. Ranks that end because another did do not either.
    if (WIFSIGNALED(status) && passed_on == 0 && (code == 0 || !grace)) {
      fmt::print(stderr, "ddaebm: {} {} of {} was killed by signal {} ({})\n", kind,
                 found - processes.begin(), processes.size(), WTERMSIG(status),
                 ::strsignal(WTERMSIG(status)));
    }
    if (status == 0 || code != 0) continue;
    code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    if (grace) deadline = std::chrono::steady_clock::now() + *grace;
  }
  return code;
}

}  // namespace

std::optional<Place> place_of_process(const Variable& variable) {
  Place place;
  const auto take = [&](const char* rank, const char* size, const char* local_rank) {
    const auto found = number(variable, rank);
    if (!found) return false;
    place.rank = *found;
    const auto all = number(variable, size);
    if (!all) fail("the variable {} is set, but {} is not; a launcher sets both", rank, size);
    place.size = *all;
    place.local_rank = number(variable, local_rank).value_or(place.rank);
    return true;
  };
  const auto text = [&](const char* name) {
    const char* found = variable(name);
    return std::string(found == nullptr ? "" : found);
  };
  bool one_machine = false;
  bool torchrun = false;
  if (take("RANK", "WORLD_SIZE", "LOCAL_RANK")) {
    torchrun = text("TORCHELASTIC_USE_AGENT_STORE") == "True";
  } else if (variable("SLURM_STEP_NUM_TASKS") != nullptr) {
    // Within srun only; a batch script has SLURM_PROCID too, but is alone.
    if (!take("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID")) return {};
    place.address = first_host(text("SLURM_STEP_NODELIST"));
    place.port = port_of_job(text("SLURM_JOB_ID") + "." + text("SLURM_STEP_ID"));
  } else if (take("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK")) {
    one_machine = number(variable, "OMPI_COMM_WORLD_LOCAL_SIZE") == place.size;
    if (!one_machine && variable("MASTER_ADDR") == nullptr) {
      fail(
          "mpirun does not say where rank 0 is; give it: mpirun -x MASTER_ADDR=host -x "
          "MASTER_PORT=29500 ...");
    }
    place.port = port_of_job(text("PMIX_NAMESPACE") + text("OMPI_MCA_ess_base_jobid"));
  } else {
    return {};
  }
  if (place.size < 1 || place.rank >= place.size) {
    fail("rank {} of {} cannot be; ranks count from 0", place.rank, place.size);
  }
  if (variable("MASTER_ADDR") != nullptr) place.address = text("MASTER_ADDR");
  place.port = number(variable, "MASTER_PORT").value_or(place.port);
  if (torchrun) {
    // At MASTER_PORT it keeps a store of its own, which only its own version of PyTorch can talk
    // to.
    place.port = port_of_job(fmt::format("{} {} {}", place.port, text("TORCHELASTIC_RUN_ID"),
                                         text("TORCHELASTIC_RESTART_COUNT")));
  }
  if (place.port < 1 || place.port > 65535) fail("MASTER_PORT is {}, which is none", place.port);
  return place;
}

int run_local_ranks(int64_t count, std::vector<std::string> arguments,
                    const std::atomic<int>& stop) {
  const std::string port = std::to_string(free_port());
  std::vector<pid_t> ranks;
  for (int64_t rank = 0; rank < count; ++rank) {
    ranks.push_back(start_one_of(
        count, arguments,
        {fmt::format("RANK={}", rank), fmt::format("LOCAL_RANK={}", rank),
         fmt::format("WORLD_SIZE={}", count), "MASTER_ADDR=127.0.0.1", "MASTER_PORT=" + port}));
  }
  return wait_for_all(ranks, "rank", kGrace, stop, {});
}

int run_local_jobs(int64_t count, std::vector<std::string> arguments, const std::atomic<int>& stop,
                   const std::function<void()>& meanwhile) {
  std::vector<pid_t> jobs;
  for (int64_t job = 0; job < count; ++job) {
    jobs.push_back(start_one_of(count, arguments, {fmt::format("{}={}", kJobVariable, job)}));
  }
  return wait_for_all(jobs, "job", {}, stop, meanwhile);
}

}  // namespace ddaebm
