#include "ddaebm/ops/cast.h"

#include <torch/csrc/autograd/custom_function.h>

namespace ddaebm::ops {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

// Tensors like `likes`, holding the elements of xs in another type.
variable_list cast(const variable_list& likes, const variable_list& xs, torch::ScalarType type) {
  variable_list parts;
  for (size_t i = 0; i < xs.size(); ++i) parts.push_back(in_order_of(likes[i], xs[i]));
  const auto all = at::cat(parts).to(type);
  int64_t from = 0;
  for (size_t i = 0; i < xs.size(); ++i) {
    parts[i] = all.as_strided(likes[i].sizes(), likes[i].strides(), from);
    from += likes[i].numel();
  }
  return parts;
}

struct CastAll : Function<CastAll> {
  static variable_list forward(AutogradContext* ctx, at::TensorList given, torch::ScalarType type) {
    const at::AutoDispatchBelowADInplaceOrView plain;
    const variable_list tensors = given.vec();
    ctx->save_for_backward(tensors);
    return cast(tensors, tensors, type);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& given) {
    const auto saved = ctx->get_saved_variables();
    const auto type = saved[0].scalar_type();
    variable_list found;
    if (torch::GradMode::is_enabled()) {
      for (const auto& g : given) found.push_back(g.to(type));
    } else {
      found = cast(saved, given, type);
    }
    found.emplace_back();
    return found;
  }
};

}  // namespace

Tensor in_order_of(const Tensor& like, const Tensor& x) {
  if (x.strides() == like.strides()) return x.as_strided({x.numel()}, {1}, x.storage_offset());
  return at::empty_strided(like.sizes(), like.strides(), x.options())
      .copy_(x)
      .as_strided({x.numel()}, {1});
}

std::vector<Tensor> cast_all(const std::vector<Tensor>& tensors, torch::ScalarType type) {
  if (tensors.empty() || tensors[0].scalar_type() == type) return tensors;
  return CastAll::apply(at::TensorList(tensors), type);
}

}  // namespace ddaebm::ops
