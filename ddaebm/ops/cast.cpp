#include "ddaebm/ops/cast.h"

#include <algorithm>

#include <torch/csrc/autograd/custom_function.h>

#include "ddaebm/ops/gpu.h"

namespace ddaebm::ops {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

// [numel], without a copy where x lies in the order of `like` already.
Tensor in_order_of(const Tensor& like, const Tensor& x) {
  if (x.strides() == like.strides()) return x.as_strided({x.numel()}, {1}, x.storage_offset());
  return at::empty_strided(like.sizes(), like.strides(), x.options())
      .copy_(x)
      .as_strided({x.numel()}, {1});
}

// Tensors like `likes`, holding the elements of xs in another type.
variable_list cast(const variable_list& likes, const variable_list& xs, torch::ScalarType type) {
  return cut(end_to_end(likes, xs, type), likes);
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

Tensor end_to_end(const std::vector<Tensor>& likes, const std::vector<Tensor>& xs,
                  torch::ScalarType type, const Tensor& onto, Tensor into) {
  if (xs.empty()) return torch::empty({0}, type);
  std::vector<Tensor> parts;
  for (size_t i = 0; i < xs.size(); ++i) parts.push_back(in_order_of(likes[i], xs[i]));
  const bool alike = std::all_of(xs.begin(), xs.end(), [&](const Tensor& x) {
    return x.scalar_type() == xs[0].scalar_type() && x.device() == xs[0].device();
  });
  if (alike && gpu::takes(xs[0])) return gpu::end_to_end(parts, type, onto);
  if (!onto.defined()) {
    if (!alike || !into.defined()) return at::cat(parts).to(type);
    return at::cat_out(into, parts);
  }
  int64_t from = 0;
  for (const Tensor& part : parts) {
    onto.slice(0, from, from + part.numel()).add_(part);
    from += part.numel();
  }
  return onto;
}

std::vector<Tensor> cut(const Tensor& flat, const std::vector<Tensor>& likes) {
  std::vector<Tensor> views;
  int64_t from = 0;
  for (const auto& like : likes) {
    views.push_back(flat.as_strided(like.sizes(), like.strides(), from));
    from += like.numel();
  }
  return views;
}

std::vector<Tensor> cast_all(const std::vector<Tensor>& tensors, torch::ScalarType type) {
  if (tensors.empty() || tensors[0].scalar_type() == type) return tensors;
  return CastAll::apply(at::TensorList(tensors), type);
}

}  // namespace ddaebm::ops
