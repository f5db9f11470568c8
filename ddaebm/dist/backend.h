#pragma once

#include <memory>

#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/types.h>

#include "ddaebm/dist/launch.h"

namespace ddaebm {

// Moves tensors between ranks: NCCL where LibTorch has CUDA, else Gloo.
class Backend {
 public:
  virtual ~Backend() = default;
  // In place; contiguous tensors.
  virtual void sum(const torch::Tensor& values) = 0;
  virtual void from_first(const torch::Tensor& values) = 0;
};

std::unique_ptr<Backend> make_backend(const c10::intrusive_ptr<c10d::Store>& store,
                                      const Place& place, torch::Device device);

}  // namespace ddaebm
