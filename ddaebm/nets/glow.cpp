#include "ddaebm/nets/glow.h"

#include <cmath>
#include <numbers>

#include "ddaebm/error.h"

namespace ddaebm {
namespace {

using torch::Tensor;

Tensor reflect(const Tensor& x, const Tensor& mirror) {
  const auto along = x.mv(mirror) / mirror.dot(mirror);
  return x - 2 * along.unsqueeze(1) * mirror;
}

Tensor log_gaussian(const Tensor& y) {
  const double constant = -0.5 * static_cast<double>(y.size(1)) * std::log(2 * std::numbers::pi);
  return constant - 0.5 * y.square().sum(1);
}

}  // namespace

GlowImpl::GlowImpl(int64_t dimension, const GlowConfig& config) {
  if (dimension < 2) fail("Glow splits data in two parts; one column cannot be split");
  // With an odd number the part that moves is the larger, so that every coordinate has its turn.
  const auto stays = dimension / 2;
  const auto moves = dimension - stays;
  auto widths = config.hidden;
  widths.push_back(2 * moves);
  for (int64_t i = 0; i < config.couplings; ++i) {
    const auto name = [&](const char* what) { return what + std::to_string(i); };
    const auto zeros = torch::zeros({dimension}, torch::kDouble);
    auto first = zeros.clone();
    first[0] = 1.0;
    Step step;
    step.log_scale = register_parameter(name("log_scale"), zeros.clone());
    step.shift = register_parameter(name("shift"), zeros.clone());
    step.mirror = register_parameter(name("mirror"), first);
    step.net = register_module(name("net"), Mlp(stays, widths, Norm::none));
    // A coupling begins as the same scale for all.
    const torch::NoGradGuard no_grad;
    const auto& last = step.net->layers().back();
    torch::Tensor(last.weight).zero_();
    torch::Tensor(last.bias).zero_();
    steps_.push_back(step);
  }
}

// The scale is Glow's, sigmoid(a + 2).
GlowImpl::Affine GlowImpl::affine(Step& step, const Tensor& stays) {
  const auto parts = step.net->forward(stays).chunk(2, 1);
  return {at::log_sigmoid(parts[0] + 2.0), parts[1]};
}

GlowImpl::Moved GlowImpl::forward(const Tensor& x) {
  Tensor h = x;
  Tensor log_det = torch::zeros({x.size(0)}, x.options());
  const auto half = x.size(1) / 2;
  for (Step& step : steps_) {
    h = (h + step.shift) * step.log_scale.exp();
    h = reflect(h.flip(1), step.mirror);
    const auto stays = h.slice(1, 0, half);
    const Affine to = affine(step, stays);
    h = torch::cat({stays, (h.slice(1, half) + to.shift) * to.log_scale.exp()}, 1);
    log_det = log_det + step.log_scale.sum() + to.log_scale.sum(1);
  }
  return {h, log_det};
}

GlowImpl::Moved GlowImpl::inverse(const Tensor& y) {
  Tensor h = y;
  Tensor log_det = torch::zeros({y.size(0)}, y.options());
  const auto half = y.size(1) / 2;
  for (size_t i = steps_.size(); i-- > 0;) {
    Step& step = steps_[i];
    const auto stays = h.slice(1, 0, half);
    const Affine to = affine(step, stays);
    h = torch::cat({stays, h.slice(1, half) * (-to.log_scale).exp() - to.shift}, 1);
    h = reflect(h, step.mirror).flip(1);
    h = h * (-step.log_scale).exp() - step.shift;
    log_det = log_det - step.log_scale.sum() - to.log_scale.sum(1);
  }
  return {h, log_det};
}

Tensor GlowImpl::log_density(const Tensor& x) {
  const Moved y = forward(x);
  return log_gaussian(y.to) + y.log_det;
}

GlowImpl::Drawn GlowImpl::draw(const Tensor& noise) {
  const Moved x = inverse(noise);
  return {x.to, log_gaussian(noise) - x.log_det};
}

}  // namespace ddaebm
