#include "ddaebm/nets/mlp.h"

#include <cmath>

#include "ddaebm/error.h"
#include "ddaebm/ops/timed_chain.h"

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
    ops::Dense layer;
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
      layer.norm.spread = spread_;
    }
    layers_.push_back(layer);
    in = out;
  }
}

torch::Tensor MlpImpl::forward(const torch::Tensor& x) const {
  if (norm_ != Norm::none) {
    return ops::reference::dense_chain(layers_, x, norm_ == Norm::after, is_training());
  }
  std::vector<ops::TimedDense> chain;
  for (const ops::Dense& l : layers_) {
    chain.push_back({.weight = l.weight, .bias = l.bias, .slope = l.slope});
    if (l.slope.defined()) chain.back().bend = ops::Bend::prelu;
  }
  return ops::timed_chain(chain, x, {});
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

TimeMlpImpl::TimeMlpImpl(int64_t in, int64_t out, int64_t steps, const TimeMlpWidths& widths,
                         int64_t embedding, Norm norm) {
  if (widths.x_branch.empty()) fail("net.branch is empty; give at least one width, such as [32]");
  auto trunk = widths.trunk;
  trunk.push_back(out);
  const int64_t joined = widths.x_branch.back() + widths.t_branch.back();
  net_.embeddings = register_buffer("embeddings", time_embeddings(steps, embedding));
  net_.x_branch =
      register_module("x_branch", Mlp(in, widths.x_branch, widths.branch_norm ? norm : Norm::none))
          ->layers();
  net_.t_branch =
      register_module("t_branch", Mlp(embedding, widths.t_branch, Norm::none))->layers();
  net_.trunk = register_module("trunk", Mlp(joined, trunk, norm))->layers();
  net_.norm_after_prelu = norm == Norm::after;
}

torch::Tensor TimeMlpImpl::forward(const torch::Tensor& x, const torch::Tensor& t) {
  return ops::time_mlp(net_, x, t, is_training());
}

ops::ValueAndGradient TimeMlpImpl::value_and_gradient(const torch::Tensor& x,
                                                      const torch::Tensor& t) {
  return ops::time_mlp_and_gradient(net_, x, t);
}

}  // namespace ddaebm
