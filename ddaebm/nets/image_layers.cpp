#include "ddaebm/nets/image_layers.h"

#include <algorithm>
#include <cmath>

#include "ddaebm/ops/attention.h"
#include "ddaebm/ops/branches.h"

namespace ddaebm {
namespace {

using torch::Tensor;

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

Tensor filled_up(const Tensor& x) {
  constexpr int64_t kMultiple = 8;
  return at::constant_pad_nd(x, {0, 0, 0, 0, 0, (kMultiple - x.size(1) % kMultiple) % kMultiple},
                             1.0);
}

ConvImpl::ConvImpl(int64_t in, int64_t out, int64_t kernel, ops::ConvShape shape, Init init,
                   bool with_bias)
    : shape_(shape) {
  const double bound = 1.0 / std::sqrt(static_cast<double>(in * kernel * kernel));
  const bool own = init.kind == Init::libtorch;
  const std::vector<int64_t> sizes = {out, in, kernel, kernel};
  // Channels last, as the images that it meets.
  weight =
      register_parameter("weight", (own ? uniform(sizes, bound) : fan_average(sizes, init.scale))
                                       .contiguous(at::MemoryFormat::ChannelsLast));
  if (with_bias) bias = register_parameter("bias", own ? uniform({out}, bound) : zeros(out));
}

Tensor ConvImpl::forward(const Tensor& x) {
  return ops::conv2d(x, like(weight, x), like(bias, x), shape_);
}

Tensor ConvImpl::weight_for(const Pass& pass, const Tensor& x) const {
  const Tensor& own = pass.weights[place];
  const int64_t more = x.size(1) - own.size(1);
  return more == 0 ? own : at::constant_pad_nd(own, {0, 0, 0, 0, 0, more});
}

Tensor ConvImpl::within(const Pass& pass, const Tensor& x) {
  const auto wide = weight_for(pass, x);
  const auto added = like(bias, x);
  const int64_t before = weight.size(1);
  const int64_t more = x.size(1) - before;
  if (more == 0) return ops::conv2d(x, wide, added, shape_);
  // In the middle of the first channel of ones, which is never beyond an image's edge.
  const int64_t side = weight.size(2) / 2;
  TORCH_CHECK(shape_.padding == side, "a bias of ones is for images that keep their size");
  const auto of_ones =
      at::constant_pad_nd(added.view({-1, 1, 1, 1}), {side, side, side, side, before, more - 1});
  return ops::conv2d(x, wide + of_ones, {}, shape_);
}

Tensor ConvImpl::without_bias(const Pass& pass, const Tensor& x) {
  return ops::conv2d(x, weight_for(pass, x), {}, shape_);
}

Norm2dImpl::Norm2dImpl(int64_t channels, int64_t latent_width, bool silu)
    : channels_(channels),
      config_{.groups = std::clamp<int64_t>(channels / 4, 1, 32), .silu = silu} {
  TORCH_CHECK(channels % config_.groups == 0, channels, " channels do not divide into ",
              config_.groups, " groups");
  if (latent_width == 0) {
    scale = register_parameter("scale", torch::ones({channels}, torch::kDouble));
    shift = register_parameter("shift", zeros(channels));
    return;
  }
  style = register_module("style", Linear(latent_width, 2 * channels));
  const torch::NoGradGuard no_grad;
  style->bias.slice(0, 0, channels).fill_(1.0);
}

Tensor Norm2dImpl::forward(const Tensor& x, const Pass& pass) {
  return ops::group_norm(x, pass.styles[place], pass.styles[place + 1], config_);
}

ops::NormAndInput Norm2dImpl::and_input(const Tensor& x, const Pass& pass) {
  return ops::group_norm_and_input(x, pass.styles[place], pass.styles[place + 1], config_);
}

Tensor Norm2dImpl::of_sum(const Tensor& x, const Tensor& add, const ops::Dropout& dropout,
                          const Pass& pass) {
  return ops::group_norm(x, add, pass.styles[place], pass.styles[place + 1], config_, dropout);
}

ResidualBlockImpl::ResidualBlockImpl(const Options& options)
    : options_(options),
      norm0_(register_module("norm0", Norm2d(options.in, options.latent_width, true))),
      norm1_(nullptr) {
  const ops::ConvShape same{.stride = 1, .padding = 1};
  conv0 = register_module("conv0", Conv(options.in, options.out, 3, same));
  time = register_module("time", Linear(options.time_width, options.out));
  norm1_ = register_module("norm1", Norm2d(options.out, options.latent_width, true));
  conv1 = register_module("conv1", Conv(options.out, options.out, 3, same, Init{.scale = 0.0}));
  if (options.in != options.out || options.resize != Resize::none) {
    skip = register_module("skip", Conv(options.in, options.out, 1, ops::ConvShape{}));
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

Tensor ResidualBlockImpl::forward(const Tensor& x, const Pass& pass) {
  const auto [normal, input] = norm0_->and_input(x, pass);
  auto h = conv0->without_bias(pass, resized(normal));
  const ops::Dropout dropout{is_training() ? options_.dropout : 0.0, pass.seed,
                             static_cast<int64_t>(place)};
  h = conv1->without_bias(pass, norm1_->of_sum(h, pass.biases[place], dropout, pass));
  return ops::residual(skip ? skip->without_bias(pass, resized(input)) : input, h, pass.ends[end]);
}

AttentionImpl::AttentionImpl(int64_t channels)
    : norm_(register_module("norm", Norm2d(channels, 0, false))) {
  const auto add = [&](const std::string& name, double scale) {
    maps.push_back(register_parameter(name + "_weight", fan_average({channels, channels}, scale)));
    maps.push_back(register_parameter(name + "_bias", zeros(channels)));
  };
  add("query", 0.1);
  add("key", 0.1);
  add("value", 0.1);
  add("out", 0.0);
}

Tensor AttentionImpl::forward(const Tensor& x, const Pass& pass) {
  const auto weight = [&](size_t i) { return pass.weights[place + 2 * i]; };
  const auto bias = [&](size_t i) { return pass.weights[place + 2 * i + 1]; };
  // 1 / sqrt C on the query's map, which is smaller than what it makes.
  const double scale = 1.0 / std::sqrt(static_cast<double>(x.size(1)));
  const auto [normal, input] = norm_->and_input(x, pass);
  const auto h = ops::attention(normal, at::cat({weight(0) * scale, weight(1), weight(2)}, 1),
                                at::cat({bias(0) * scale, bias(1), bias(2)}), weight(3));
  return ops::residual(input, h, bias(3).expand({x.size(0), x.size(1)}));
}

PyramidStepImpl::PyramidStepImpl(int64_t in, int64_t out, ops::Filter filter)
    : filter_(filter),
      conv_(register_module("conv", Conv(in, out, 3, ops::ConvShape{.stride = 2}))) {}

Tensor PyramidStepImpl::forward(const Tensor& x, const Tensor& h, const Pass& pass) {
  // Both give one pixel more at each end, or one at the far end, for the last window.
  const auto wider =
      filter_ == ops::Filter::fir ? ops::smooth(x) : at::constant_pad_nd(x, {0, 1, 0, 1});
  return ops::residual(conv_->without_bias(pass, wider), h,
                       conv_->bias.expand({h.size(0), h.size(1)}));
}

Tensor pixel_norm(const Tensor& z) {
  return z * (z.square().mean(1, /*keepdim=*/true) + 1e-8).rsqrt();
}

}  // namespace ddaebm
