#include "ddaebm/train/progress.h"

#include <cmath>
#include <cstdio>
#include <memory>

#include <unistd.h>

#include <fmt/format.h>

namespace ddaebm {

std::string clock_text(double seconds) {
  const int64_t s = std::lround(seconds);
  return s >= 3600 ? fmt::format("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60)
                   : fmt::format("{}:{:02}", s / 60, s % 60);
}

Progress::Progress(std::string task, int64_t total, int64_t done, Shows shows)
    : task_(std::move(task)),
      total_(total),
      start_(done),
      shows_(shows),
      terminal_(isatty(STDERR_FILENO) != 0),
      began_(Clock::now()),
      shown_(began_) {}

Progress::~Progress() { finish(); }

void Progress::update(int64_t done, const std::string& note) {
  const auto now = Clock::now();
  const std::chrono::duration<double> since = now - shown_;
  if (done < total_ && since.count() < (terminal_ ? 0.2 : 10.0)) return;
  shown_ = now;
  const double elapsed = std::chrono::duration<double>(now - began_).count();
  const double rate = static_cast<double>(done - start_) / std::max(elapsed, 1e-9);
  const double left = static_cast<double>(total_ - done) / std::max(rate, 1e-9);
  constexpr int64_t kWidth = 24;
  const auto filled = static_cast<size_t>(kWidth * done / total_);
  const std::string bar = std::string(filled, '#') + std::string(kWidth - filled, '-');
  const std::string far = shows_ == Shows::count
                              ? fmt::format("{}/{}  {:.3g}/s", done, total_, rate)
                              : fmt::format("{:.1f} %", 100.0 * static_cast<double>(done) /
                                                            static_cast<double>(total_));
  const std::string line =
      fmt::format("{} [{}] {}  ETA {}  {}", task_, bar, far, clock_text(left), note);
  // Erase to the end of the line: the last text may have been longer.
  if (terminal_) {
    fmt::print(stderr, "\r{}\x1b[K", line);
  } else {
    fmt::print(stderr, "{}\n", line);
  }
  std::fflush(stderr);
  open_ = terminal_;
}

void Progress::finish() {
  if (open_) std::fputc('\n', stderr);
  open_ = false;
}

void LateProgress::update(const std::string& task, int64_t done, int64_t total) {
  if (task != task_) {
    bar_.reset();
    task_ = task;
    began_ = Clock::now();
  }
  const bool early = !bar_ && Clock::now() - began_ < std::chrono::seconds(2);
  if (early && done >= total) finish();
  if (early || total <= 0) return;
  if (!bar_) bar_.emplace(task, total, done);
  bar_->update(done);
  if (done >= total) finish();
}

std::function<void(int64_t done, int64_t total)> late_progress(const std::string& task) {
  return [task, bar = std::make_shared<LateProgress>()](int64_t done, int64_t total) {
    bar->update(task, done, total);
  };
}

}  // namespace ddaebm
