#include "ddaebm/ops/group_norm.h"

#include <torch/csrc/autograd/custom_function.h>

#include "ddaebm/ops/image_kernels.h"

namespace ddaebm::ops {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

struct Saved : torch::CustomClassHolder {
  explicit Saved(const GroupNormConfig& given) : config(given) {}
  GroupNormConfig config;
};

void keep(AutogradContext* ctx, const variable_list& tensors, const GroupNormConfig& config) {
  ctx->save_for_backward(tensors);
  ctx->saved_data["config"] = c10::IValue::make_capsule(c10::make_intrusive<Saved>(config));
}

const GroupNormConfig& kept(AutogradContext* ctx) {
  return static_cast<const Saved&>(*ctx->saved_data["config"].toCapsule()).config;
}

// The gradients of y = forward(x, scale, shift), themselves a function with gradients.
struct Backward : Function<Backward> {
  static variable_list forward(AutogradContext* ctx, const Tensor& gy, const Tensor& x,
                               const Tensor& scale, const Tensor& shift, const Tensor& mean,
                               const Tensor& inverse, const GroupNormConfig& config) {
    const at::AutoDispatchBelowADInplaceOrView plain;
    keep(ctx, {gy, x, scale, shift, mean, inverse}, config);
    ctx->set_materialize_grads(false);  // a derivative in x alone leaves the other two unused
    auto g = kernels::group_norm_backward(gy, {x, scale, shift, mean, inverse}, config);
    return {g.x, g.scale, g.shift};
  }
  static variable_list backward(AutogradContext* ctx, variable_list given) {
    TORCH_CHECK(!torch::GradMode::is_enabled(),
                "group_norm can be differentiated twice, not three times; see ops::reference");
    const at::AutoDispatchBelowADInplaceOrView plain;
    const auto saved = ctx->get_saved_variables();
    auto g = kernels::group_norm_backward_twice({given[0], given[1], given[2]}, saved[0],
                                                {saved[1], saved[2], saved[3], saved[4], saved[5]},
                                                kept(ctx));
    return {g.gy, g.x, g.scale, g.shift, Tensor(), Tensor(), Tensor()};
  }
};

// scale and shift are [N, C].
struct Forward : Function<Forward> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& scale,
                        const Tensor& shift, const GroupNormConfig& config) {
    const at::AutoDispatchBelowADInplaceOrView plain;
    auto [y, mean, inverse] = kernels::group_norm_forward(x, scale, shift, config);
    keep(ctx, {x, scale, shift, mean, inverse}, config);
    return y;
  }
  static variable_list backward(AutogradContext* ctx, variable_list given) {
    const auto saved = ctx->get_saved_variables();
    auto g = Backward::apply(given[0], saved[0], saved[1], saved[2], saved[3], saved[4], kept(ctx));
    return {g[0], g[1], g[2], Tensor()};
  }
};

// [C] -> [N, C].
Tensor for_each_image(const Tensor& of_channels, const Tensor& x) {
  return of_channels.dim() == 2 ? of_channels : of_channels.expand({x.size(0), x.size(1)});
}

}  // namespace

Tensor group_norm(const Tensor& x, const Tensor& scale, const Tensor& shift,
                  const GroupNormConfig& config) {
  return Forward::apply(x, for_each_image(scale, x), for_each_image(shift, x), config);
}

Tensor reference::group_norm(const Tensor& x, const Tensor& scale, const Tensor& shift,
                             const GroupNormConfig& config) {
  const auto grouped = x.reshape({x.size(0), config.groups, -1});
  const auto centred = grouped - grouped.mean(2, /*keepdim=*/true);
  const auto variance = centred.square().mean(2, /*keepdim=*/true);
  const auto normal = (centred * (variance + config.eps).rsqrt()).reshape_as(x);
  const auto over_space = [&](const Tensor& v) {
    return for_each_image(v, x).unsqueeze(2).unsqueeze(3);
  };
  const auto y = over_space(scale) * normal + over_space(shift);
  return config.silu ? y * y.sigmoid() : y;
}

}  // namespace ddaebm::ops
