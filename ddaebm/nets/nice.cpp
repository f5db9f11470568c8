#include "ddaebm/nets/nice.h"

#include <cmath>
#include <map>
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

NiceImpl::Couplings NiceImpl::timed_couplings() const {
  Couplings made;
  for (const auto& coupling : couplings) {
    auto& layers = made.emplace_back();
    for (const Layer& l : coupling) {
      const bool last = &l == &coupling.back();
      const auto hidden = l.slope.defined() ? ops::Bend::prelu : ops::Bend::softplus;
      layers.push_back({.weight = l.weight,
                        .bias = l.bias,
                        .slope = l.slope,
                        .bend = last ? ops::Bend::linear : hidden});
    }
  }
  if (!embeddings_.defined()) return made;

  // What depends on t alone is done once a time, and for all layers of a width at once.
  struct Alike {
    std::vector<Tensor> weights, biases, slopes;
    std::vector<Tensor*> after;
  };
  std::map<int64_t, Alike> by_width;
  for (size_t c = 0; c < couplings.size(); ++c) {
    for (size_t i = 0; i + 1 < couplings[c].size(); ++i) {
      const Layer& l = couplings[c][i];
      Alike& alike = by_width[l.time_weight.size(0)];
      alike.weights.push_back(l.time_weight);
      alike.biases.push_back(l.time_bias);
      alike.slopes.push_back(l.time_slope);
      alike.after.push_back(&made[c][i].after);
    }
  }
  for (const auto& [width, alike] : by_width) {
    const auto layers = static_cast<int64_t>(alike.after.size());
    const auto h = at::linear(embeddings_, torch::cat(alike.weights), torch::cat(alike.biases));
    const auto table = at::prelu(h.view({-1, layers, width}), torch::cat(alike.slopes));
    const auto of_layers = table.transpose(0, 1).contiguous().unbind(0);  // each [T, width]
    for (size_t i = 0; i < alike.after.size(); ++i) *alike.after[i] = of_layers[i];
  }
  return made;
}

// Coordinates of even places first; then by turns the second half moves and the first.
Tensor NiceImpl::forward(const Tensor& x, const Tensor& t) const {
  Tensor first = x.slice(1, 0, x.size(1), 2);
  Tensor second = x.slice(1, 1, x.size(1), 2);
  const auto timed = timed_couplings();
  for (size_t c = 0; c < timed.size(); ++c) {
    Tensor& moves = c % 2 == 0 ? second : first;
    const Tensor& stays = c % 2 == 0 ? first : second;
    moves = moves + ops::timed_chain(timed[c], stays, t);
  }
  return torch::cat({first, second}, 1) * scale.exp();
}

Tensor NiceImpl::inverse(const Tensor& y, const Tensor& t) const {
  auto halves = (y * (-scale).exp()).chunk(2, 1);
  const auto timed = timed_couplings();
  for (size_t c = timed.size(); c-- > 0;) {
    Tensor& moves = c % 2 == 0 ? halves[1] : halves[0];
    const Tensor& stays = c % 2 == 0 ? halves[0] : halves[1];
    moves = moves - ops::timed_chain(timed[c], stays, t);
  }
  return at::stack({halves[0], halves[1]}, 2).flatten(1);
}

Tensor NiceImpl::log_density(const Tensor& x, const Tensor& t) const {
  const double constant = -0.5 * static_cast<double>(x.size(1)) * std::log(2 * std::numbers::pi);
  return constant - 0.5 * forward(x, t).square().sum(1) + scale.sum();
}

}  // namespace ddaebm
