#include "ddaebm/nets/mlp.h"

#include <cmath>

namespace ddaebm {

MlpImpl::MlpImpl(int64_t in, const std::vector<int64_t>& widths, Norm norm) : norm_(norm) {
  for (size_t i = 0; i < widths.size(); ++i) {
    const int64_t out = widths[i];
    const bool hidden = i + 1 < widths.size();
    const auto name = [&](const char* what) { return what + std::to_string(i); };
    // PyTorch's default: uniform within 1 / sqrt(fan in), weight and bias alike.
    const double bound = 1.0 / std::sqrt(static_cast<double>(in));
    const auto uniform = [&](at::IntArrayRef shape) {
      return torch::empty(shape, torch::kDouble).uniform_(-bound, bound);
    };
    Layer layer;
    layer.weight = register_parameter(name("weight"), uniform({out, in}));
    layer.bias = register_parameter(name("bias"), uniform({out}));
    if (hidden) {
      layer.slope = register_parameter(name("slope"), torch::full({1}, 0.25, torch::kDouble));
    }
    if (hidden && norm != Norm::none) {
      const auto ones = torch::ones({out}, torch::kDouble);
      layer.scale = register_parameter(name("norm_scale"), ones.clone());
      layer.shift = register_parameter(name("norm_shift"), torch::zeros_like(ones));
      layer.running_mean = register_buffer(name("norm_mean"), torch::zeros_like(ones));
      layer.running_variance = register_buffer(name("norm_variance"), ones.clone());
    }
    layers_.push_back(layer);
    in = out;
  }
}

torch::Tensor MlpImpl::batch_norm(const Layer& layer, const torch::Tensor& h) const {
  return at::batch_norm(h, layer.scale, layer.shift, layer.running_mean, layer.running_variance,
                        is_training(), /*momentum=*/0.1, /*eps=*/1e-5, /*cudnn_enabled=*/true);
}

torch::Tensor MlpImpl::forward(torch::Tensor x) {
  for (const Layer& layer : layers_) {
    x = at::linear(x, layer.weight, layer.bias);
    if (!layer.slope.defined()) continue;
    if (norm_ == Norm::before) x = batch_norm(layer, x);
    x = at::prelu(x, layer.slope);
    if (norm_ == Norm::after) x = batch_norm(layer, x);
  }
  return x;
}

torch::Tensor time_embeddings(int64_t steps, int64_t width) {
  const int64_t half = width / 2;
  const double rate = std::log(10000.0) / static_cast<double>(half - 1);
  const auto frequency = torch::exp(torch::arange(half, torch::kDouble) * -rate);
  const auto angle = torch::arange(steps, torch::kDouble).unsqueeze(1) * frequency;
  auto table = torch::cat({angle.sin(), angle.cos()}, 1);
  // An odd width ends in a column of zeros.
  return at::constant_pad_nd(table, {0, width % 2});
}

TimeMlpImpl::TimeMlpImpl(int64_t in, int64_t out, int64_t steps, const MlpConfig& config, Norm norm)
    : embeddings_(register_buffer("embeddings", time_embeddings(steps, config.embedding))) {
  x_branch_ = register_module("x_branch", Mlp(in, config.branch, norm));
  t_branch_ = register_module("t_branch", Mlp(config.embedding, config.branch, Norm::none));
  auto widths = config.trunk;
  widths.push_back(out);
  trunk_ = register_module("trunk", Mlp(2 * config.branch.back(), widths, norm));
}

torch::Tensor TimeMlpImpl::forward(const torch::Tensor& x, const torch::Tensor& t) {
  const auto time = t_branch_(embeddings_.index_select(0, t));
  return trunk_(torch::cat({x_branch_(x), time}, 1));
}

}  // namespace ddaebm
