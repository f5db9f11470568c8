#include "ddaebm/data/workers.h"

#include <algorithm>
#include <latch>

#include <ATen/Parallel.h>

namespace ddaebm {

Workers::Workers(int count, const std::function<void()>& body) {
  // The number of LibTorch's threads belongs to a thread, but is also what later threads start
  // with: so it is put back once all have taken it.
  const int before = at::get_num_threads();
  std::latch started(count);
  for (int i = 0; i < count; ++i) {
    threads_.emplace_back([&started, body] {
      at::set_num_threads(1);
      started.count_down();
      body();
    });
  }
  started.wait();
  at::set_num_threads(before);
}

void Workers::join() {
  for (auto& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
}

int worker_count() { return std::max(1, static_cast<int>(std::thread::hardware_concurrency())); }

}  // namespace ddaebm
