#include "ddaebm/train/flat.h"

#include "ddaebm/ops/cast.h"

namespace ddaebm {

FlatTensors::FlatTensors(std::vector<NamedTensor> members) : members_(std::move(members)) {
  std::vector<torch::Tensor> parts;
  for (const auto& [name, tensor] : members_) {
    parts.push_back(ops::in_order_of(tensor, tensor.detach()));
  }
  all = parts.empty() ? torch::empty({0}) : torch::cat(parts);
  const auto views = cut(all);
  for (size_t i = 0; i < members_.size(); ++i) members_[i].tensor.set_data(views[i].tensor);
}

std::vector<NamedTensor> FlatTensors::cut(const torch::Tensor& flat) const {
  std::vector<NamedTensor> views;
  int64_t from = 0;
  for (const auto& [name, tensor] : members_) {
    views.push_back({name, flat.as_strided(tensor.sizes(), tensor.strides(), from)});
    from += tensor.numel();
  }
  return views;
}

}  // namespace ddaebm
