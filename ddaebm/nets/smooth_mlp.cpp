#include "ddaebm/nets/smooth_mlp.h"

#include <cmath>
#include <string>

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
  auto h = at::linear(x, weights_[0], biases_[0]);
  for (size_t i = 1; i < weights_.size(); ++i) h = at::linear(at::silu(h), weights_[i], biases_[i]);
  return h;
}

}  // namespace ddaebm
