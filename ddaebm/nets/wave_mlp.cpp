#include "ddaebm/nets/wave_mlp.h"

#include <cmath>
#include <string>

namespace ddaebm {

using torch::Tensor;

namespace {
constexpr size_t kTimedLayers = 2;
}  // namespace

WaveMlpImpl::WaveMlpImpl(int64_t in, int64_t out, int64_t times, const std::vector<int64_t>& hidden,
                         int64_t waves)
    : frequencies_(
          register_buffer("frequencies", torch::pow(2.0, torch::arange(waves, torch::kDouble)))),
      time_numbers_(register_buffer("time_numbers", torch::arange(times, torch::kLong))) {
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
    if (i < kTimedLayers && i < hidden.size()) {
      of_times_.push_back(register_parameter(
          "times" + std::to_string(i), 0.3 * torch::randn({times, widths[i]}, torch::kDouble)));
    }
    columns = widths[i];
  }
}

Tensor WaveMlpImpl::forward(const Tensor& x, const Tensor& t) const {
  const auto phase = (x.unsqueeze(2) * frequencies_).flatten(1);
  Tensor h = torch::cat({x, phase.sin(), phase.cos()}, 1);
  // A product and no look-up: its derivative adds up in a fixed order, and fast.
  const auto which = (t.unsqueeze(1) == time_numbers_).to(x.scalar_type());
  for (size_t i = 0; i < weights_.size(); ++i) {
    h = at::linear(i == 0 ? h : at::silu(h), weights_[i], biases_[i]);
    if (i < of_times_.size()) h = at::addmm(h, which, of_times_[i]);
  }
  return h;
}

}  // namespace ddaebm
