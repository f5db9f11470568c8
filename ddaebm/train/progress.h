#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace ddaebm {

// One line on standard error that says how far a long task is, how fast, and when it will be done.
// On a terminal it rewrites itself; elsewhere (a log file) it prints a line now and then.
class Progress {
 public:
  // Things done of `total` and how many a second, or the share of `total` that is done.
  enum class Shows { count, share };
  Progress(std::string task, int64_t total, int64_t done = 0, Shows shows = Shows::count);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void update(int64_t done, const std::string& note = "");
  // Ends the line, so that other text can follow.
  void finish();

 private:
  using Clock = std::chrono::steady_clock;
  std::string task_;
  int64_t total_, start_;
  Shows shows_;
  bool terminal_, open_ = false;
  Clock::time_point began_, shown_;
};

// The same for tasks that may be short: nothing is shown in their first two seconds.
class LateProgress {
 public:
  // A new name begins a new task, as does the first update after one that was done.
  void update(const std::string& task, int64_t done, int64_t total);
  void finish() {
    bar_.reset();
    task_.clear();
  }

 private:
  using Clock = std::chrono::steady_clock;
  std::string task_;
  Clock::time_point began_;
  std::optional<Progress> bar_;
};

// Shows how far `task` is, as one LateProgress would.
std::function<void(int64_t done, int64_t total)> late_progress(const std::string& task);

// "1:02:03", "4:05".
std::string clock_text(double seconds);

}  // namespace ddaebm
