#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <vector>

#include <torch/types.h>

namespace ddaebm::ops {

// Work that may be done beside other work, since neither fills the device. What autograd derives
// from it may run beside other work too. A GPU has streams for it. On a CPU two threads do one of
// the two each: what both had a share of would wander between the cores' memories.
class Beside {
 public:
  // A lane's work is done in turn: in two of them whole networks, in the others what a pass of a
  // network need not wait for, its branch of times and the gradients of its weights. The last two
  // are for GPUs, and work like any other on a CPU.
  enum class Lane { first, second, times, weights };
  Beside(torch::Device device, Lane lane) : device_(device), lane_(lane) {}

  // A GPU is given `work` now, whose kernels wait for all that was given to it before. A CPU keeps
  // it until `join`. Tensors of others that it reads must live until then: those of `kept` do.
  void run(std::function<void()> work, const std::vector<torch::Tensor>& kept = {});
  // Calls `meanwhile`, if there is one, beside what runs. From here on the results may be used.
  void join(const std::function<void()>& meanwhile = {});

 private:
  void run_on_gpu(const std::function<void()>& work, const std::vector<torch::Tensor>& kept);
  void join_gpu();

  torch::Device device_;
  Lane lane_;
  std::vector<torch::Tensor> kept_;
  std::vector<std::function<void()>> waiting_;  // a CPU's
  bool begun_ = false;                          // on a GPU
};

// Settles when a CPU has a thread for each of two lanes, for networks of so many weights together.
// Where it has two threads; where it has more, if the networks are small, as then more threads are
// no help within one. Not where several processes work together, which must all say in the same
// order what they say to each other.
void settle_lanes(int64_t processes, int64_t weights);

// What one lane leaves for another: `made` where it is ready, `await` before it is used.
class Handover {
 public:
  explicit Handover(torch::Device device);
  ~Handover();
  void made();
  void await();
  // Makes it, and says so even where that fails: no one waits for what will not come.
  template <class Make>
  auto after(const Make& make) {
    try {
      auto result = make();
      made();
      return result;
    } catch (...) {
      made();
      throw;
    }
  }

 private:
  struct Event;
  torch::Device device_;
  std::unique_ptr<Event> event_;   // a GPU's
  std::atomic<bool> made_{false};  // a CPU's
};

}  // namespace ddaebm::ops
