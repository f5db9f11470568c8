#include "ddaebm/ops/group_norm.h"

#include <vector>

#include <ATen/ops/dropout.h>
#include <torch/csrc/autograd/custom_function.h>

#include "ddaebm/ops/cpu_images.h"
#include "ddaebm/ops/gpu.h"
#include "ddaebm/ops/image_kernels.h"

namespace ddaebm::ops {
namespace {

using kernels::GroupNormParts;
using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

// [C] -> [N, C].
Tensor for_each_image(const Tensor& of_channels, const Tensor& x) {
  return of_channels.dim() == 2 ? of_channels : of_channels.expand({x.size(0), x.size(1)});
}

// What is no tensor to differentiate.
struct Fixed : torch::CustomClassHolder {
  Fixed(const GroupNormConfig& config_, const Dropout& dropout_, bool gives_input_ = false)
      : config(config_), dropout(dropout_), gives_input(gives_input_) {}
  GroupNormConfig config;
  Dropout dropout;
  bool gives_input;
};
using FixedPtr = c10::intrusive_ptr<Fixed>;

// Saved and given as lists: x, scale, shift, and `add` where there is one.
GroupNormParts parts_of(const variable_list& list, const Tensor& mean, const Tensor& inverse,
                        const Fixed& fixed) {
  const auto& x = list[0];
  return {x,
          for_each_image(list[1], x),
          for_each_image(list[2], x),
          mean,
          inverse,
          list.size() > 3 ? list[3] : Tensor(),
          fixed.dropout};
}

// Gradients in the channels' values, each in its own shape and type.
void append_channel_gradients(variable_list& to, const Tensor& channels,
                              const variable_list& list) {
  const bool shared = list[1].dim() == 1;
  const auto of_image = shared ? channels.slice(0, 0, 2).sum(1) : channels;
  for (int64_t i = 1; i < static_cast<int64_t>(list.size()); ++i) {
    const auto& found = shared && i < 3 ? of_image : channels;
    to.push_back(found.select(0, i - 1).to(list[static_cast<size_t>(i)].scalar_type()));
  }
}

const Fixed& kept(AutogradContext* ctx) {
  return static_cast<const Fixed&>(*ctx->saved_data["fixed"].toCapsule());
}

// The gradients of y = forward(x, scale, shift, add), themselves a function with gradients. `more`
// is empty, or a gradient of x that is added to its own.
struct Backward : Function<Backward> {
  static variable_list forward(AutogradContext* ctx, const Tensor& gy, const Tensor& mean,
                               const Tensor& inverse, at::TensorList given, at::TensorList more,
                               const FixedPtr& fixed, bool channels_wanted) {
    const at::AutoDispatchBelowADInplaceOrView plain;
    const variable_list list = given.vec();
    variable_list saved = {gy, mean, inverse};
    saved.insert(saved.end(), list.begin(), list.end());
    ctx->save_for_backward(saved);
    ctx->saved_data["fixed"] = c10::IValue::make_capsule(fixed);
    ctx->saved_data["more"] = !more.empty();
    ctx->set_materialize_grads(false);  // a derivative in x alone leaves the others unused
    const auto g =
        kernels::group_norm_backward(gy, parts_of(list, mean, inverse, *fixed), fixed->config,
                                     channels_wanted, more.empty() ? Tensor() : more[0]);
    variable_list found = {g.x};
    if (channels_wanted) append_channel_gradients(found, g.channels, list);
    return found;
  }
  static variable_list backward(AutogradContext* ctx, variable_list given) {
    TORCH_CHECK(!torch::GradMode::is_enabled(),
                "group_norm can be differentiated twice, not three times; see ops::reference");
    const at::AutoDispatchBelowADInplaceOrView plain;
    const auto saved = ctx->get_saved_variables();
    const variable_list list(saved.begin() + 3, saved.end());
    const Fixed& fixed = kept(ctx);
    const auto cotangent = [&](size_t i) {
      return i < given.size() && given[i].defined() ? for_each_image(given[i], list[0]) : Tensor();
    };
    const auto g =
        kernels::group_norm_backward_twice({given[0], cotangent(1), cotangent(2)}, saved[0],
                                           parts_of(list, saved[1], saved[2], fixed), fixed.config);
    variable_list found = {g.gy, Tensor(), Tensor(), g.x};
    append_channel_gradients(found, g.channels, list);
    if (ctx->saved_data["more"].toBool()) found.push_back(given[0]);
    found.resize(found.size() + 2);
    return found;
  }
};

struct Forward : Function<Forward> {
  static variable_list forward(AutogradContext* ctx, at::TensorList given, const FixedPtr& fixed) {
    const at::AutoDispatchBelowADInplaceOrView plain;
    const variable_list list = given.vec();
    auto parts = parts_of(list, {}, {}, *fixed);
    auto y = kernels::group_norm_forward(parts, fixed->config);
    variable_list saved = {parts.mean, parts.inverse};
    saved.insert(saved.end(), list.begin(), list.end());
    ctx->save_for_backward(saved);
    ctx->saved_data["fixed"] = c10::IValue::make_capsule(fixed);
    return fixed->gives_input ? variable_list{y, list[0]} : variable_list{y};
  }
  static variable_list backward(AutogradContext* ctx, variable_list given) {
    const auto saved = ctx->get_saved_variables();
    const variable_list list(saved.begin() + 2, saved.end());
    bool channels_wanted = false;
    for (size_t i = 1; i < list.size(); ++i) {
      channels_wanted = channels_wanted || ctx->needs_input_grad(i);
    }
    const variable_list more(given.begin() + 1, given.end());
    auto g =
        Backward::apply(given[0], saved[0], saved[1], at::TensorList(list), at::TensorList(more),
                        c10::make_intrusive<Fixed>(kept(ctx)), channels_wanted);
    g.resize(list.size() + 1);
    return g;
  }
};

// Linear, so that it is its own derivative.
struct Drop : Function<Drop> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const FixedPtr& fixed) {
    const at::AutoDispatchBelowADInplaceOrView plain;
    ctx->saved_data["fixed"] = c10::IValue::make_capsule(fixed);
    return cpu::drop(x, fixed->dropout);
  }
  static variable_list backward(AutogradContext* ctx, variable_list given) {
    return {Drop::apply(given[0], c10::make_intrusive<Fixed>(kept(ctx))), Tensor()};
  }
};

}  // namespace

Tensor group_norm(const Tensor& x, const Tensor& scale, const Tensor& shift,
                  const GroupNormConfig& config) {
  const variable_list list = {x, scale, shift};
  return Forward::apply(at::TensorList(list), c10::make_intrusive<Fixed>(config, Dropout()))[0];
}

NormAndInput group_norm_and_input(const Tensor& x, const Tensor& scale, const Tensor& shift,
                                  const GroupNormConfig& config) {
  const variable_list list = {x, scale, shift};
  const auto both = Forward::apply(at::TensorList(list),
                                   c10::make_intrusive<Fixed>(config, Dropout(), /*input=*/true));
  return {both[0], both[1]};
}

Tensor group_norm(const Tensor& x, const Tensor& add, const Tensor& scale, const Tensor& shift,
                  const GroupNormConfig& config, const Dropout& dropout) {
  if (!kernels::takes(x)) {
    const auto moved = x + add.to(x.scalar_type()).unsqueeze(2).unsqueeze(3);
    const auto y = group_norm(moved, scale, shift, config);
    return dropout.rate > 0 ? at::dropout(y, dropout.rate, /*train=*/true) : y;
  }
  const variable_list list = {x, scale, shift, add};
  const auto with = c10::make_intrusive<Fixed>(config, dropout);
  if (gpu::takes(x)) return Forward::apply(at::TensorList(list), with)[0];
  const auto y =
      Forward::apply(at::TensorList(list), c10::make_intrusive<Fixed>(config, Dropout()))[0];
  return dropout.rate > 0 ? Drop::apply(y, with) : y;
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
