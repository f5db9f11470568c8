#include "ddaebm/ops/check.h"

#include <algorithm>

#include <fmt/format.h>

#include "ddaebm/ops/adam.h"
#include "ddaebm/random.h"

namespace ddaebm::ops {
namespace {

double difference(const std::vector<torch::Tensor>& fast, const std::vector<torch::Tensor>& plain) {
  double worst = 0.0;
  for (size_t i = 0; i < fast.size(); ++i) {
    const auto scale = plain[i].abs().max().clamp_min(1e-3);
    worst = std::max(worst, ((fast[i] - plain[i]).abs().max() / scale).item<double>());
  }
  return worst;
}

CheckResult check_adam(const torch::TensorOptions& options, double allowed, const char* type) {
  Random random(options.device());
  const auto draw = [&] { return random.normal({10007}, options); };
  const auto g = draw();
  const auto dials = torch::full({2}, 0.5, options);
  std::vector<torch::Tensor> fast = {draw(), draw(), draw().abs(), draw()};
  std::vector<torch::Tensor> plain;
  for (const auto& tensor : fast) plain.push_back(tensor.clone());
  const AdamConstants constants{.beta1 = 0.3, .beta2 = 0.9, .eps = 1e-8, .average_decay = 0.99};
  adam(fast[0], g, fast[1], fast[2], fast[3], dials, constants);
  reference::adam(plain[0], g, plain[1], plain[2], plain[3], dials, constants);
  return {fmt::format("adam, {}", type), difference(fast, plain), allowed};
}

}  // namespace

std::vector<CheckResult> check_all(torch::Device device) {
  std::vector<CheckResult> results;
  const auto both = [&](auto check) {
    results.push_back(check(torch::TensorOptions(torch::kDouble).device(device), 1e-12, "float64"));
    results.push_back(check(torch::TensorOptions(torch::kFloat).device(device), 1e-5, "float32"));
  };
  both(check_adam);
  return results;
}

}  // namespace ddaebm::ops
