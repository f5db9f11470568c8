#include "ddaebm/nets/image_layers.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "ddaebm/ops/group_norm.h"

namespace ddaebm {
namespace {

using torch::Tensor;

constexpr double kHalf = std::numbers::sqrt2 / 2;  // what keeps a sum of two at their variance

Tensor uniform(at::IntArrayRef shape, double bound) {
  return torch::empty(shape, torch::kDouble).uniform_(-bound, bound);
}

// [out, in, ...] or [in, out]: both fans count alike.
Tensor fan_average(at::IntArrayRef shape, double scale) {
  double field = 1.0;
  for (size_t i = 2; i < shape.size(); ++i) field *= static_cast<double>(shape[i]);
  const double fan = 0.5 * field * static_cast<double>(shape[0] + shape[1]);
  return uniform(shape, std::sqrt(3.0 * std::max(scale, 1e-10) / fan));
}

Tensor zeros(int64_t n) { return torch::zeros({n}, torch::kDouble); }

Tensor like(const Tensor& parameter, const Tensor& x) {
  return parameter.defined() ? parameter.to(x.scalar_type()) : parameter;
}

}  // namespace

LinearImpl::LinearImpl(int64_t in, int64_t out)
    : weight(register_parameter("weight", fan_average({out, in}, 1.0))),
      bias(register_parameter("bias", zeros(out))) {}

Tensor LinearImpl::forward(const Tensor& x) { return at::linear(x, weight, bias); }

ConvImpl::ConvImpl(int64_t in, int64_t out, int64_t kernel, ops::ConvShape shape, Init init,
                   bool with_bias)
    : shape_(shape) {
  const double bound = 1.0 / std::sqrt(static_cast<double>(in * kernel * kernel));
  const bool own = init.kind == Init::libtorch;
  const std::vector<int64_t> sizes = {out, in, kernel, kernel};
  weight =
      register_parameter("weight", own ? uniform(sizes, bound) : fan_average(sizes, init.scale));
  if (with_bias) bias = register_parameter("bias", own ? uniform({out}, bound) : zeros(out));
}

Tensor ConvImpl::forward(const Tensor& x) {
  return ops::conv2d(x, like(weight, x), like(bias, x), shape_);
}

Norm2dImpl::Norm2dImpl(int64_t channels, int64_t latent_width, bool silu)
    : groups_(std::clamp<int64_t>(channels / 4, 1, 32)), silu_(silu) {
  TORCH_CHECK(channels % groups_ == 0, channels, " channels do not divide into ", groups_,
              " groups");
  if (latent_width == 0) {
    scale = register_parameter("scale", torch::ones({channels}, torch::kDouble));
    shift = register_parameter("shift", zeros(channels));
    return;
  }
  style = register_module("style", Linear(latent_width, 2 * channels));
  const torch::NoGradGuard no_grad;
  style->bias.slice(0, 0, channels).fill_(1.0);
}

Tensor Norm2dImpl::forward(const Tensor& x, const Tensor& latent) {
  const ops::GroupNormConfig config{.groups = groups_, .silu = silu_};
  if (!style) return ops::group_norm(x, scale, shift, config);
  const auto both = style(latent).chunk(2, 1);
  return ops::group_norm(x, both[0], both[1], config);
}

ResidualBlockImpl::ResidualBlockImpl(const Options& options)
    : options_(options),
      norm0_(register_module("norm0", Norm2d(options.in, options.latent_width, true))),
      norm1_(nullptr) {
  const ops::ConvShape same{.stride = 1, .padding = 1};
  conv0_ = register_module("conv0", Conv(options.in, options.out, 3, same));
  time_ = register_module("time", Linear(options.time_width, options.out));
  norm1_ = register_module("norm1", Norm2d(options.out, options.latent_width, true));
  conv1_ = register_module("conv1", Conv(options.out, options.out, 3, same, Init{.scale = 0.0}));
  if (options.in != options.out || options.resize != Resize::none) {
    skip_ = register_module("skip", Conv(options.in, options.out, 1, ops::ConvShape{}));
  }
}

Tensor ResidualBlockImpl::resized(const Tensor& x) const {
  switch (options_.resize) {
    case Resize::halve:
      return ops::downsample(x, options_.filter);
    case Resize::twice:
      return ops::upsample(x, options_.filter);
    default:
      return x;
  }
}

Tensor ResidualBlockImpl::forward(const Tensor& x, const Tensor& time, const Tensor& latent) {
  auto h = conv0_(resized(norm0_(x, latent)));
  h = h + like(time_(time), h).unsqueeze(2).unsqueeze(3);
  h = norm1_(h, latent);
  if (options_.dropout > 0) h = at::dropout(h, options_.dropout, is_training());
  h = conv1_(h);
  const auto direct = skip_ ? skip_(resized(x)) : x;
  return (direct + h) * kHalf;
}

AttentionImpl::AttentionImpl(int64_t channels)
    : norm_(register_module("norm", Norm2d(channels, 0, false))) {
  const auto weight = [&](const char* name, double scale) {
    return register_parameter(name, fan_average({channels, channels}, scale));
  };
  const auto bias = [&](const char* name) { return register_parameter(name, zeros(channels)); };
  query_weight_ = weight("query_weight", 0.1);
  query_bias_ = bias("query_bias");
  key_weight_ = weight("key_weight", 0.1);
  key_bias_ = bias("key_bias");
  value_weight_ = weight("value_weight", 0.1);
  value_bias_ = bias("value_bias");
  out_weight_ = weight("out_weight", 0.0);
  out_bias_ = bias("out_bias");
}

Tensor AttentionImpl::forward(const Tensor& x) {
  const auto pixels = norm_(x).flatten(2).transpose(1, 2);  // [N, HW, C]
  const auto map = [&](const Tensor& in, const Tensor& weight, const Tensor& bias) {
    return at::linear(in, like(weight, x).t(), like(bias, x));
  };
  const auto query = map(pixels, query_weight_, query_bias_);
  const auto key = map(pixels, key_weight_, key_bias_);
  const auto value = map(pixels, value_weight_, value_bias_);
  const double scale = 1.0 / std::sqrt(static_cast<double>(x.size(1)));
  const auto weights = at::softmax(at::bmm(query, key.transpose(1, 2)) * scale, -1);
  const auto out = map(at::bmm(weights, value), out_weight_, out_bias_);
  return (x + out.transpose(1, 2).reshape_as(x)) * kHalf;
}

PyramidStepImpl::PyramidStepImpl(int64_t in, int64_t out, ops::Filter filter)
    : filter_(filter),
      conv_(register_module("conv", Conv(in, out, 3, ops::ConvShape{.stride = 2}))) {}

Tensor PyramidStepImpl::forward(const Tensor& x) {
  // Both give one pixel more at each end, or one at the far end, for the last window.
  return conv_(filter_ == ops::Filter::fir ? ops::smooth(x) : at::constant_pad_nd(x, {0, 1, 0, 1}));
}

Tensor pixel_norm(const Tensor& z) {
  return z * (z.square().mean(1, /*keepdim=*/true) + 1e-8).rsqrt();
}

}  // namespace ddaebm
