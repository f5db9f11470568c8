#include "ddaebm/serve/counters.h"

#include <algorithm>
#include <fstream>

#include <unistd.h>

#include <fmt/format.h>

namespace ddaebm::serve {
namespace {

std::string metric(const char* name, const char* type, const char* help, const std::string& lines) {
  return fmt::format("# HELP {0} {1}\n# TYPE {0} {2}\n{3}", name, help, type, lines);
}

std::string number(const char* name, const char* type, const char* help, uint64_t value) {
  return metric(name, type, help, fmt::format("{} {}\n", name, value));
}

// As Linux tells it; 0 elsewhere.
uint64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  uint64_t all = 0;
  uint64_t resident = 0;
  file >> all >> resident;
  return resident * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
}

}  // namespace

void Counters::count_answer(int status) {
  const std::lock_guard lock(mutex_);
  ++answers_[status];
}

void Counters::count_time(const std::string& path, std::chrono::duration<double> taken) {
  const auto* bound = std::lower_bound(kBounds.begin(), kBounds.end(), taken.count());
  const std::lock_guard lock(mutex_);
  Times& times = times_[path];
  ++times.counts.at(static_cast<size_t>(bound - kBounds.begin()));
  times.sum += taken.count();
}

void Counters::count_batch(int64_t requests, int64_t rows) {
  const std::lock_guard lock(mutex_);
  ++batches_;
  batched_requests_ += static_cast<uint64_t>(requests);
  rows_ += static_cast<uint64_t>(rows);
}

std::string Counters::text(int64_t waiting, int64_t iteration) const {
  const std::lock_guard lock(mutex_);
  std::string answers;
  for (const auto& [status, count] : answers_) {
    answers += fmt::format("ddaebm_answers_total{{status=\"{}\"}} {}\n", status, count);
  }
  std::string times;
  for (const auto& [path, of] : times_) {
    uint64_t below = 0;
    for (size_t i = 0; i < of.counts.size(); ++i) {
      below += of.counts.at(i);
      times += fmt::format("ddaebm_request_seconds_bucket{{path=\"{}\",le=\"{}\"}} {}\n", path,
                           i < kBounds.size() ? fmt::format("{}", kBounds.at(i)) : "+Inf", below);
    }
    times += fmt::format(
        "ddaebm_request_seconds_sum{{path=\"{0}\"}} {1}\n"
        "ddaebm_request_seconds_count{{path=\"{0}\"}} {2}\n",
        path, of.sum, below);
  }
  return metric("ddaebm_answers_total", "counter", "Answers by status.", answers) +
         metric("ddaebm_request_seconds", "histogram", "Time from request to answer.", times) +
         number("ddaebm_batches_total", "counter", "Batches that were scored.", batches_) +
         number("ddaebm_batched_requests_total", "counter", "Requests in them.",
                batched_requests_) +
         number("ddaebm_scored_rows_total", "counter", "Rows in them.", rows_) +
         number("ddaebm_waiting_requests", "gauge", "Requests that wait for the model.",
                static_cast<uint64_t>(waiting)) +
         number("ddaebm_iteration", "gauge", "Iteration of the checkpoint that answers; 0: none.",
                static_cast<uint64_t>(std::max<int64_t>(iteration, 0))) +
         number("process_resident_memory_bytes", "gauge", "Memory in use.", resident_bytes());
}

}  // namespace ddaebm::serve
