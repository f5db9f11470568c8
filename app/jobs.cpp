#include "app/jobs.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>

#include "app/stop.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/cuda.h>

#include "ddaebm/dist/launch.h"
#include "ddaebm/train/progress.h"

namespace ddaebm::app {
namespace {

std::vector<std::string> own_arguments() {
  std::ifstream words("/proc/self/cmdline");
  std::vector<std::string> all;
  for (std::string word; std::getline(words, word, '\0');) all.push_back(word);
  return all;
}

CompareProgress progress_of_all(const std::vector<Contest>& contests) {
  CompareProgress all;
  for (const auto& contest : contests) {
    const CompareProgress one = progress_of(contest.contestants, contest.options);
    all.done += one.done / static_cast<double>(contests.size());
    all.training.insert(all.training.end(), one.training.begin(), one.training.end());
  }
  return all;
}

void run_jobs(int64_t most, std::vector<Contest>& contests) {
  using Clock = std::chrono::steady_clock;
  int64_t left = 0;
  for (auto& contest : contests) {
    left += prepare_jobs(contest.contestants, contest.options, stop_signal);
  }
  const int64_t jobs = std::min(most, left);
  if (jobs == 0 || stop_signal != 0) return;
  const auto parts = [](double share) { return static_cast<int64_t>(10000 * share); };
  Progress bar(fmt::format("{} jobs", jobs), parts(1), parts(progress_of_all(contests).done),
               Progress::Shows::share);
  auto looked = Clock::now();
  std::fflush(nullptr);
  run_local_jobs(jobs, own_arguments(), stop_signal, [&] {
    if (Clock::now() - looked < std::chrono::seconds(5)) return;
    looked = Clock::now();
    const CompareProgress now = progress_of_all(contests);
    bar.update(parts(now.done), fmt::format("{}", fmt::join(now.training, ", ")));
  });
}

// Of all GPUs, where no one of them is named.
torch::Device device_of_job(torch::Device device) {
  if (!device.is_cuda() || device.has_index()) return device;
  const auto job = std::strtoul(std::getenv(kJobVariable), nullptr, 10);
  return {torch::kCUDA, static_cast<c10::DeviceIndex>(job % torch::cuda::device_count())};
}

}  // namespace

void add_jobs_option(CLI::App& command, int64_t& jobs) {
  command
      .add_option(
          "--jobs", jobs,
          "How many models to train at once, a process each (the seeds of a vector model go "
          "together); cores are shared out among them, and so are GPUs")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
}

bool is_job() { return std::getenv(kJobVariable) != nullptr; }

void share_out(int64_t jobs, std::vector<Contest>& contests) {
  if (jobs <= 1) return;
  if (!is_job()) run_jobs(jobs, contests);
  for (auto& contest : contests) {
    contest.options.portion = is_job() ? Portion::unclaimed : Portion::rest;
    if (is_job()) contest.options.device = device_of_job(contest.options.device);
  }
}

}  // namespace ddaebm::app
