#include "ddaebm/nets/wave_mlp.h"

#include <cmath>
#include <string>

#include "ddaebm/ops/timed_chain.h"
#include "ddaebm/ops/waves.h"

namespace ddaebm {

using torch::Tensor;

namespace {
constexpr size_t kTimedLayers = 2;
}  // namespace

WaveMlpImpl::WaveMlpImpl(int64_t in, int64_t out, int64_t times, const std::vector<int64_t>& hidden,
                         int64_t waves)
    : frequencies_(
          register_buffer("frequencies", torch::pow(2.0, torch::arange(waves, torch::kDouble)))) {
  auto widths = hidden;
  widths.push_back(out);
  int64_t columns = in * (1 + 2 * waves);
  for (size_t i = 0; i < widths.size(); ++i) {
    const double bound = 1.0 / std::sqrt(static_cast<double>(columns));
    const auto add = [&](const char* what, at::IntArrayRef shape) {
      return register_parameter(what + std::to_string(i),
                                torch::empty(shape, torch::kDouble).uniform_(-bound, bound));
    };
    weights_.push_back(add("weight", {widths[i], columns}));
    biases_.push_back(add("bias", {widths[i]}));
    if (times > 0 && i < kTimedLayers && i < hidden.size()) {
      of_times_.push_back(register_parameter(
          "times" + std::to_string(i), 0.3 * torch::randn({times, widths[i]}, torch::kDouble)));
    }
    columns = widths[i];
  }
}

Tensor WaveMlpImpl::forward(const Tensor& x, const Tensor& t) const {
  std::vector<ops::TimedDense> layers(weights_.size());
  for (size_t i = 0; i < layers.size(); ++i) {
    layers[i].weight = weights_[i];
    layers[i].bias = biases_[i];
    if (i + 1 < layers.size()) layers[i].bend = ops::Bend::silu;
    if (i < of_times_.size()) layers[i].before = of_times_[i];
  }
  return ops::timed_chain(layers, ops::waves(x, frequencies_), t);
}

}  // namespace ddaebm
