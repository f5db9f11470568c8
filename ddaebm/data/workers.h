#pragma once

#include <functional>
#include <thread>
#include <vector>

namespace ddaebm {

// Threads that each run `body`, joined at the end. LibTorch's operators run on one thread in each:
// threads of theirs beside these would fight for the cores.
class Workers {
 public:
  Workers(int count, const std::function<void()>& body);
  ~Workers() { join(); }
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;
  void join();

 private:
  std::vector<std::thread> threads_;
};

// One thread a core.
int worker_count();

}  // namespace ddaebm
