#include "ddaebm/serve/worker.h"

#include <utility>

namespace ddaebm::serve {
namespace {

int64_t numbers_of_rows(const torch::Tensor& rows) { return rows.defined() ? rows.numel() : 0; }

}  // namespace

Worker::Worker(const WorkerLimits& limits, Watch watch)
    : limits_(limits), watch_(std::move(watch)), thread_([this] { work(); }) {}

Worker::~Worker() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

bool Worker::score(torch::Tensor rows, Outcome outcome) {
  return add({std::move(rows), std::move(outcome), Clock::now()});
}

bool Worker::run(Outcome outcome) { return add({{}, std::move(outcome), Clock::now()}); }

bool Worker::add(Job job) {
  {
    const std::lock_guard lock(mutex_);
    const int64_t more = numbers_of_rows(job.rows);
    if (static_cast<int64_t>(jobs_.size()) >= limits_.queue || numbers_ + more > limits_.numbers) {
      return false;
    }
    numbers_ += more;
    jobs_.push_back(std::move(job));
  }
  changed_.notify_one();
  return true;
}

void Worker::use(std::shared_ptr<Snapshot> snapshot) {
  const std::lock_guard lock(mutex_);
  snapshot_ = std::move(snapshot);
}

std::shared_ptr<Snapshot> Worker::snapshot() const {
  const std::lock_guard lock(mutex_);
  return snapshot_;
}

int64_t Worker::waiting() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int64_t>(jobs_.size());
}

void Worker::work() {
  for (;;) {
    auto jobs = next_batch();
    if (jobs.empty()) return;
    attend(std::move(jobs));
  }
}

// The jobs that are done together, in the order in which they came; none at the end.
std::vector<Worker::Job> Worker::next_batch() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return stopping_ || !jobs_.empty(); });
  std::vector<Job> batch;
  int64_t rows = 0;
  while (!jobs_.empty()) {
    const Job& job = jobs_.front();
    // The first is done whatever it is; others join it as long as they fit.
    if (!batch.empty() && (!batch.front().rows.defined() || !job.rows.defined() ||
                           rows + job.rows.size(0) > limits_.batch)) {
      break;
    }
    rows += job.rows.defined() ? job.rows.size(0) : 0;
    numbers_ -= numbers_of_rows(job.rows);
    batch.push_back(std::move(jobs_.front()));
    jobs_.pop_front();
  }
  return batch;
}

void Worker::attend(std::vector<Job> jobs) {
  const auto oldest = Clock::now() - limits_.timeout;
  std::erase_if(jobs, [&](const Job& job) {
    if (job.since >= oldest) return false;
    job.outcome.failed(std::make_exception_ptr(WaitedTooLong()));
    return true;
  });
  if (jobs.empty()) return;
  const auto model = snapshot();
  size_t done = 0;
  try {
    torch::Tensor scores;
    std::vector<torch::Tensor> rows;
    if (jobs.front().rows.defined()) {
      for (const auto& job : jobs) rows.push_back(job.rows);
      const auto all = rows.size() == 1 ? rows.front() : torch::cat(rows);
      scores = model->scores(all);
      watch_(static_cast<int64_t>(jobs.size()), all.size(0));
    }
    for (int64_t from = 0; done < jobs.size(); ++done) {
      const int64_t n = scores.defined() ? rows[done].size(0) : 0;
      const auto part = scores.defined() ? scores.slice(0, from, from + n) : scores;
      jobs[done].outcome.scored(*model, part);
      from += n;
    }
  } catch (...) {
    for (; done < jobs.size(); ++done) jobs[done].outcome.failed(std::current_exception());
  }
}

}  // namespace ddaebm::serve
