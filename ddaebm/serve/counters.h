#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>

namespace ddaebm::serve {

// What /metrics shows of the server's work.
class Counters {
 public:
  void count_answer(int status);
  // A request of a path was answered after so long.
  void count_time(const std::string& path, std::chrono::duration<double> taken);
  void count_batch(int64_t requests, int64_t rows);

  // In Prometheus' text format, with numbers that others know.
  std::string text(int64_t waiting, int64_t iteration) const;

 private:
  // Seconds, upper bounds.
  static constexpr std::array kBounds = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1,
                                         0.25,  0.5,    1.0,   2.5,  5.0,   10.0};
  struct Times {
    std::array<uint64_t, kBounds.size() + 1> counts{};
    double sum = 0;
  };

  mutable std::mutex mutex_;  // guards what follows
  std::map<int, uint64_t> answers_;
  std::map<std::string, Times> times_;
  uint64_t batches_ = 0, batched_requests_ = 0, rows_ = 0;
};

}  // namespace ddaebm::serve
