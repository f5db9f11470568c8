#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include <torch/types.h>

#include "ddaebm/serve/snapshot.h"

namespace ddaebm::serve {

struct WorkerLimits {
  int64_t batch = 4096;           // rows scored at once, at most; 1: each request by itself
  int64_t queue = 1024;           // requests that wait
  int64_t numbers = 32LL << 20U;  // in the rows of all that wait
  std::chrono::milliseconds timeout{30000};  // that a request waits, at most
};

// The one thread that uses the model. Rows of requests that wait at the same time are scored
// together.
class Worker {
 public:
  // Told how many rows of how many requests were scored together.
  using Watch = std::function<void(int64_t requests, int64_t rows)>;
  Worker(const WorkerLimits& limits, Watch watch);
  // Does what waits, then ends.
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // What became of a request. Exactly one of the two calls is made, on the worker's thread.
  struct Outcome {
    std::function<void(Snapshot& by, const torch::Tensor& scores)> scored;  // Snapshot::scores
    std::function<void(std::exception_ptr why)> failed;
  };
  // Has rows [N, ...] scored; false where too much waits already.
  bool score(torch::Tensor rows, Outcome outcome);
  // The same of anything else that is to be done with the model; `scored` gets no scores.
  bool run(Outcome outcome);

  // The model from now on.
  void use(std::shared_ptr<Snapshot> snapshot);
  std::shared_ptr<Snapshot> snapshot() const;
  int64_t waiting() const;

 private:
  using Clock = std::chrono::steady_clock;
  struct Job {
    torch::Tensor rows;  // undefined: not to be scored
    Outcome outcome;
    Clock::time_point since;
  };
  bool add(Job job);
  void work();
  std::vector<Job> next_batch();
  void attend(std::vector<Job> jobs);

  const WorkerLimits limits_;
  const Watch watch_;
  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::deque<Job> jobs_;
  int64_t numbers_ = 0;
  bool stopping_ = false;
  std::shared_ptr<Snapshot> snapshot_;
  std::thread thread_;
};

// What a request gets that waited longer than the limit.
class WaitedTooLong : public std::exception {};

}  // namespace ddaebm::serve
