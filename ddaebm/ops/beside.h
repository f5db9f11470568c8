#pragma once

#include <functional>
#include <vector>

#include <torch/types.h>

namespace ddaebm::ops {

// Work that a GPU may do beside what it is given afterwards, since neither fills it; on a CPU, work
// like any other. What autograd derives from it may run beside other work too.
class Beside {
 public:
  // A lane's work is done in turn: in one whole networks, in the others what a pass of a network
  // need not wait for, its branch of times and the gradients of its weights.
  enum class Lane { networks, times, weights };
  explicit Beside(torch::Device device, Lane lane = Lane::networks)
      : device_(device), lane_(lane) {}

  // Calls `work`, whose kernels wait for all that was given to the device before. Tensors of
  // others that it reads must live until `join`: those of `kept` do.
  void run(const std::function<void()>& work, const std::vector<torch::Tensor>& kept = {});
  // From here on the results may be used.
  void join();

 private:
  torch::Device device_;
  Lane lane_;
  std::vector<torch::Tensor> kept_;
};

}  // namespace ddaebm::ops
