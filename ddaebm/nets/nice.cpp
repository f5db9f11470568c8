#include "ddaebm/nets/nice.h"

#include <cmath>
#include <numbers>
#include <utility>

#include "ddaebm/error.h"
#include "ddaebm/nets/mlp.h"

namespace ddaebm {

using torch::Tensor;

NiceImpl::NiceImpl(int64_t dimension, int64_t steps, const NiceConfig& config) : config_(config) {
  if (dimension % 2 != 0) {
    fail("NICE splits data in two halves; {} columns are an odd number", dimension);
  }
  const auto half = dimension / 2;
  const bool timed = config.embedding > 0;
  if (timed) {
    embeddings_ = register_buffer("embeddings", time_embeddings(steps, config.embedding));
  }
  for (int64_t c = 0; c < config.couplings; ++c) {
    auto widths = config.hidden;
    widths.push_back(half);
    std::vector<Layer> layers;
    int64_t in = half;
    for (size_t i = 0; i < widths.size(); ++i) {
      const int64_t out = widths[i];
      const bool hidden = i + 1 < widths.size();
      const auto add = [&](const char* what, at::IntArrayRef shape, int64_t fan_in) {
        const double bound = 1.0 / std::sqrt(static_cast<double>(fan_in));
        return register_parameter(fmt::format("coupling{}_{}{}", c, what, i),
                                  torch::empty(shape, torch::kDouble).uniform_(-bound, bound));
      };
      const auto add_slope = [&](const char* what) {
        return register_parameter(fmt::format("coupling{}_{}{}", c, what, i),
                                  torch::full({1}, 0.25, torch::kDouble));
      };
      Layer layer;
      layer.weight = add("weight", {out, in}, in);
      layer.bias = add("bias", {out}, in);
      if (hidden && config.activation == NiceConfig::prelu) layer.slope = add_slope("slope");
      if (hidden && timed) {
        layer.time_weight = add("time_weight", {out, config.embedding}, config.embedding);
        layer.time_bias = add("time_bias", {out}, config.embedding);
        layer.time_slope = add_slope("time_slope");
      }
      layers.push_back(layer);
      in = out;
    }
    couplings.push_back(layers);
  }
  scale = register_parameter("scale", torch::zeros({dimension}, torch::kDouble));
}

Tensor NiceImpl::shift(const std::vector<Layer>& coupling, const Tensor& half,
                       const Tensor& t) const {
  Tensor h = half;
  for (size_t i = 0; i < coupling.size(); ++i) {
    const Layer& layer = coupling[i];
    h = at::linear(h, layer.weight, layer.bias);
    if (i + 1 == coupling.size()) break;
    h = layer.slope.defined() ? at::prelu(h, layer.slope) : at::softplus(h);
    if (!layer.time_weight.defined()) continue;
    // What depends on t alone is done once a time.
    const auto of_times =
        at::prelu(at::linear(embeddings_, layer.time_weight, layer.time_bias), layer.time_slope);
    h = h + of_times.index_select(0, t);
  }
  return h;
}

// Coordinates of even places first; then by turns the second half moves and the first.
Tensor NiceImpl::forward(const Tensor& x, const Tensor& t) const {
  Tensor first = x.slice(1, 0, x.size(1), 2);
  Tensor second = x.slice(1, 1, x.size(1), 2);
  for (size_t c = 0; c < couplings.size(); ++c) {
    Tensor& moves = c % 2 == 0 ? second : first;
    const Tensor& stays = c % 2 == 0 ? first : second;
    moves = moves + shift(couplings[c], stays, t);
  }
  return torch::cat({first, second}, 1) * scale.exp();
}

Tensor NiceImpl::inverse(const Tensor& y, const Tensor& t) const {
  auto halves = (y * (-scale).exp()).chunk(2, 1);
  for (size_t c = couplings.size(); c-- > 0;) {
    Tensor& moves = c % 2 == 0 ? halves[1] : halves[0];
    const Tensor& stays = c % 2 == 0 ? halves[0] : halves[1];
    moves = moves - shift(couplings[c], stays, t);
  }
  return at::stack({halves[0], halves[1]}, 2).flatten(1);
}

Tensor NiceImpl::log_density(const Tensor& x, const Tensor& t) const {
  const double constant = -0.5 * static_cast<double>(x.size(1)) * std::log(2 * std::numbers::pi);
  return constant - 0.5 * forward(x, t).square().sum(1) + scale.sum();
}

}  // namespace ddaebm
