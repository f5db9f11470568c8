#pragma once

#include <string>
#include <vector>

#include <torch/types.h>

namespace ddaebm {

// A tensor as checkpoints know it.
struct NamedTensor {
  std::string name;
  torch::Tensor tensor;
};

// Many tensors laid end to end in one: each becomes a view of `all`, so that an optimiser step, an
// average or a copy is one operation on one vector. Each keeps its order in memory.
class FlatTensors {
 public:
  explicit FlatTensors(std::vector<NamedTensor> members);

  torch::Tensor all;  // [sum of sizes]
  const std::vector<NamedTensor>& members() const { return members_; }
  // Another vector of the same layout, cut into tensors of the members' names and shapes.
  std::vector<NamedTensor> cut(const torch::Tensor& flat) const;

 private:
  std::vector<NamedTensor> members_;
};

}  // namespace ddaebm
