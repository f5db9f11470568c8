#include "ddaebm/train/flat.h"

namespace ddaebm {

FlatTensors::FlatTensors(std::vector<NamedTensor> members) : members_(std::move(members)) {
  std::vector<torch::Tensor> parts;
  for (const auto& [name, tensor] : members_) parts.push_back(tensor.detach().reshape({-1}));
  all = parts.empty() ? torch::empty({0}) : torch::cat(parts);
  const auto views = cut(all);
  for (size_t i = 0; i < members_.size(); ++i) members_[i].tensor.set_data(views[i].tensor);
}

std::vector<NamedTensor> FlatTensors::cut(const torch::Tensor& flat) const {
  std::vector<NamedTensor> views;
  int64_t from = 0;
  for (const auto& [name, tensor] : members_) {
    views.push_back({name, flat.narrow(0, from, tensor.numel()).view(tensor.sizes())});
    from += tensor.numel();
  }
  return views;
}

}  // namespace ddaebm
