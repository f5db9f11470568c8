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
      layer.norm.scale = register_parameter(name("norm_scale"), ones.clone());
      layer.norm.shift = register_parameter(name("norm_shift"), torch::zeros_like(ones));
      layer.norm.running_mean = register_buffer(name("norm_mean"), torch::zeros_like(ones));
      layer.norm.running_variance = register_buffer(name("norm_variance"), ones.clone());
    }
    layers_.push_back(layer);
    in = out;
  }
}

torch::Tensor MlpImpl::hidden(const Layer& layer, const torch::Tensor& x,
                              const torch::Tensor& weight, const ops::Bias& bias) const {
  if (norm_ == Norm::before && is_training()) {
    return ops::dense_norm_prelu(x, weight, bias, layer.norm, layer.slope);
  }
  const auto batch_norm = [&](const torch::Tensor& h) {
    return at::batch_norm(h, layer.norm.scale, layer.norm.shift, layer.norm.running_mean,
                          layer.norm.running_variance, is_training(), layer.norm.momentum,
                          layer.norm.eps, /*cudnn_enabled=*/false);
  };
  if (norm_ == Norm::before) {
    const auto h = x.mm(weight.t()) +
                   (bias.rows.defined() ? bias.table.index_select(0, bias.rows) : bias.table);
    return at::prelu(batch_norm(h), layer.slope);
  }
  const auto y = ops::dense_prelu(x, weight, bias, layer.slope);
  return norm_ == Norm::after ? batch_norm(y) : y;
}

torch::Tensor MlpImpl::after_first(torch::Tensor x) const {
  for (size_t i = 1; i < layers_.size(); ++i) {
    const Layer& layer = layers_[i];
    x = layer.slope.defined() ? hidden(layer, x, layer.weight, {layer.bias.unsqueeze(0), {}})
                              : at::linear(x, layer.weight, layer.bias);
  }
  return x;
}

torch::Tensor MlpImpl::forward(const torch::Tensor& x) {
  const Layer& first = layers_.front();
  if (!first.slope.defined()) return at::linear(x, first.weight, first.bias);
  return after_first(hidden(first, x, first.weight, {first.bias.unsqueeze(0), {}}));
}

torch::Tensor MlpImpl::forward_joined(const torch::Tensor& x, const torch::Tensor& table,
                                      const torch::Tensor& rows) {
  const Layer& first = layers_.front();
  if (!first.slope.defined()) return forward(torch::cat({x, table.index_select(0, rows)}, 1));
  const auto columns = first.weight.split({x.size(1), table.size(1)}, 1);
  const auto bias = at::linear(table, columns[1], first.bias);
  return after_first(hidden(first, x, columns[0], {bias, rows}));
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
  return trunk_->forward_joined(x_branch_(x), t_branch_(embeddings_), t);
}

}  // namespace ddaebm
