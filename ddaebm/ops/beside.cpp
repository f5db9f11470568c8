#include "ddaebm/ops/beside.h"

#include <atomic>
#include <exception>

#include <ATen/Parallel.h>
#include <ATen/ThreadLocalState.h>
#ifdef _OPENMP
#include <omp.h>
#endif

namespace ddaebm::ops {
namespace {

// How many threads there may be besides the two that have a lane each; less than none: no lanes.
std::atomic<int> idle_threads{0};

bool a_lane_each() {
  const int beyond_two = at::get_num_threads() - 2;
  return beyond_two >= 0 && beyond_two <= idle_threads && !at::in_parallel_region();
}

// Within a lane work has no more threads. Libraries that ask OpenMP how many there are must hear
// it: oneDNN would count on two that wait for each other, and hang, or add up what is not there
// yet. The number that is set here is the lane's own.
void have_one_thread() {
#ifdef _OPENMP
  at::get_num_threads();  // where a thread's first call sets them, later ones do not
  if (omp_in_parallel() != 0) omp_set_num_threads(1);
#endif
}

// Should there be one thread only after all, it does `first`, which waits for nothing, before
// `second`, which may wait for what the other hands over.
void both(const std::function<void()>& first, const std::function<void()>& second) {
  const at::ThreadLocalState state;
  std::exception_ptr failures[2];
  at::parallel_for(0, 2, 1, [&](int64_t begin, int64_t end) {
    have_one_thread();
    for (int64_t i = begin; i < end; ++i) {
      try {
        const at::ThreadLocalStateGuard guard(state);
        i == 0 ? first() : second();
      } catch (...) {
        failures[i] = std::current_exception();
      }
    }
  });
  for (const auto& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
}

}  // namespace

void settle_lanes(int64_t processes, int64_t weights) {
  constexpr int64_t kSmall = 1000000;
  constexpr int kAny = 1 << 16;
  idle_threads = processes > 1 ? -1 : weights < kSmall ? kAny : 0;
}

void Beside::run(std::function<void()> work, const std::vector<torch::Tensor>& kept) {
  if (device_.is_cuda()) {
    run_on_gpu(work, kept);
    begun_ = true;
  } else if (lane_ == Lane::times || lane_ == Lane::weights) {
    work();
  } else {
    kept_.insert(kept_.end(), kept.begin(), kept.end());
    waiting_.push_back(std::move(work));
  }
}

void Beside::join(const std::function<void()>& meanwhile) {
  const auto work = [&] {
    for (const auto& part : waiting_) part();
  };
  if (!device_.is_cuda() && meanwhile && !waiting_.empty() && a_lane_each()) {
    both(work, meanwhile);
  } else {
    work();
    if (meanwhile) meanwhile();
  }
  if (begun_) join_gpu();
  waiting_.clear();
  kept_.clear();
}

}  // namespace ddaebm::ops
