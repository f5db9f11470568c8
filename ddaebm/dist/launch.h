#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace ddaebm {

// Where a process stands among those that train one model together.
struct Place {
  int64_t rank = 0, size = 1;
  int64_t local_rank = 0;             // on this machine
  std::string address = "127.0.0.1";  // where rank 0 is met
  int64_t port = 29500;
};

// As the launcher says: torchrun (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT), Slurm's
// srun or Open MPI's mpirun by their own variables; nothing where none has started this process.
// An Error where they contradict themselves. `variable` is std::getenv.
using Variable = std::function<const char*(const char*)>;
std::optional<Place> place_of_process(const Variable& variable);

// Starts this program `count` times with these arguments (the first is its name), each as one rank,
// and waits for all. What `stop` receives is passed on to them. When one dies the others have a
// little time to say so and are then ended. Returns the exit code of the first that failed, else 0.
int run_local_ranks(int64_t count, std::vector<std::string> arguments,
                    const std::atomic<int>& stop);

// The same for processes that share out work among themselves: each is told by the variable
// DDAEBM_JOB that it is one of them, and goes on where another dies. `meanwhile` is called again
// and again until all have ended.
int run_local_jobs(int64_t count, std::vector<std::string> arguments, const std::atomic<int>& stop,
                   const std::function<void()>& meanwhile);
constexpr const char* kJobVariable = "DDAEBM_JOB";

}  // namespace ddaebm
