#pragma once

#include <functional>
#include <memory>
#include <vector>

#include <torch/types.h>

namespace ddaebm::ops {

// Work that a GPU may do beside what it is given afterwards, since neither fills it; on a CPU, work
// like any other. What autograd derives from it may run beside other work too.
class Beside {
 public:
  // A lane's work is done in turn: in two of them whole networks, in the others what a pass of a
  // network need not wait for, its branch of times and the gradients of its weights.
  enum class Lane { first, second, times, weights };
  Beside(torch::Device device, Lane lane) : device_(device), lane_(lane) {}

  // Calls `work`, whose kernels wait for all that was given to the device before. Tensors of
  // others that it reads must live until `join`: those of `kept` do.
  void run(const std::function<void()>& work, const std::vector<torch::Tensor>& kept = {});
  // From here on the results may be used.
  void join();

 private:
  torch::Device device_;
  [[maybe_unused]] Lane lane_;  // where there is a GPU
  std::vector<torch::Tensor> kept_;
};

// What one lane leaves for another: `made` where it is ready, `await` before it is used.
class Handover {
 public:
  explicit Handover(torch::Device device);
  ~Handover();
  void made();
  void await();

 private:
  struct Event;
  torch::Device device_;
  std::unique_ptr<Event> event_;
};

}  // namespace ddaebm::ops
