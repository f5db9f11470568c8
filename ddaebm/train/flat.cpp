#include "ddaebm/train/flat.h"

#include "ddaebm/ops/cast.h"

namespace ddaebm {
namespace {

std::vector<torch::Tensor> tensors_of(const std::vector<NamedTensor>& members) {
  std::vector<torch::Tensor> tensors;
  for (const auto& [name, tensor] : members) tensors.push_back(tensor.detach());
  return tensors;
}

}  // namespace

FlatTensors::FlatTensors(std::vector<NamedTensor> members) : members_(std::move(members)) {
  const auto tensors = tensors_of(members_);
  all =
      ops::end_to_end(tensors, tensors, tensors.empty() ? torch::kFloat : tensors[0].scalar_type());
  const auto views = ops::cut(all, tensors);
  for (size_t i = 0; i < members_.size(); ++i) members_[i].tensor.set_data(views[i]);
}

std::vector<NamedTensor> FlatTensors::cut(const torch::Tensor& flat) const {
  const auto views = ops::cut(flat, tensors_of(members_));
  std::vector<NamedTensor> named;
  for (size_t i = 0; i < views.size(); ++i) named.push_back({members_[i].name, views[i]});
  return named;
}

}  // namespace ddaebm
