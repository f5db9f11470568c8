#pragma once

#include <functional>

#include <torch/types.h>

namespace ddaebm::ops {

// Work that a GPU may do beside what it is given afterwards, since neither fills it; on a CPU, work
// like any other. What autograd derives from it may run beside other work too. Tensors that both
// sides use must live until `join`.
class Beside {
 public:
  // Calls `work`, whose kernels wait for all that was given to the device before.
  Beside(torch::Device device, const std::function<void()>& work);
  // From here on the results may be used.
  void join();

 private:
  torch::Device device_;
};

}  // namespace ddaebm::ops
