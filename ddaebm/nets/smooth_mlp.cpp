#include "ddaebm/nets/smooth_mlp.h"

#include <cmath>
#include <string>

#include "ddaebm/ops/timed_chain.h"

namespace ddaebm {

SmoothMlpImpl::SmoothMlpImpl(int64_t in, const std::vector<int64_t>& widths) {
  for (size_t i = 0; i < widths.size(); ++i) {
    const double bound = 1.0 / std::sqrt(static_cast<double>(in));
    const auto add = [&](const char* what, at::IntArrayRef shape) {
      return register_parameter(what + std::to_string(i),
                                torch::empty(shape, torch::kDouble).uniform_(-bound, bound));
    };
    weights_.push_back(add("weight", {widths[i], in}));
    biases_.push_back(add("bias", {widths[i]}));
    in = widths[i];
  }
}

torch::Tensor SmoothMlpImpl::forward(const torch::Tensor& x) const {
  std::vector<ops::TimedDense> layers(weights_.size());
  for (size_t i = 0; i < layers.size(); ++i) {
    layers[i].weight = weights_[i];
    layers[i].bias = biases_[i];
    if (i + 1 < layers.size()) layers[i].bend = ops::Bend::silu;
  }
  return ops::timed_chain(layers, x, {});
}

}  // namespace ddaebm
