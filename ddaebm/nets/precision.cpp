#include "ddaebm/nets/precision.h"

#include <array>
#include <utility>

#include <ATen/Context.h>
#include <torch/csrc/autograd/autograd.h>

#include "ddaebm/nets/networks.h"
#include "ddaebm/tf32.h"

namespace ddaebm {
namespace {

struct Found {
  torch::Tensor energy, gradient, second;
};

Found compute(Precision precision, torch::ScalarType type, torch::Device device) {
  ImageNetConfig config;
  config.channels = 32;
  config.multipliers = {1, 2};
  config.blocks = config.energy_blocks = 1;
  config.attention = {8};
  config.dropout = 0.0;
  config.precision = precision;
  const AllowTf32 rounding(precision == Precision::tf32);
  // The same weights and data each time.
  auto generator = at::globalContext().defaultGenerator(torch::kCPU);
  {
    std::lock_guard<std::mutex> lock(generator.mutex());
    generator.set_current_seed(0);
  }
  const auto energy = make_image_networks({3, 16}, 4, config).energy;
  auto x = torch::randn({8, 3, 16, 16}, torch::kDouble);
  {
    const torch::NoGradGuard no_grad;
    // Last layers start at zero, which would hide the rest.
    for (auto& parameter : energy->parameters())
      parameter.add_(0.05 * torch::randn_like(parameter));
  }
  energy->to(device, type);
  const auto t = torch::arange(8, torch::TensorOptions(torch::kLong).device(device)).remainder(4);
  auto [value, gradient] = energy->value_and_gradient(x.to(device, type), t);
  std::vector<torch::Tensor> flat;
  for (const auto& part : torch::autograd::grad({gradient.square().sum()}, energy->parameters(), {},
                                                {}, false, /*allow_unused=*/true)) {
    if (part.defined()) flat.push_back(part.reshape({-1}));
  }
  const auto exact = [](const torch::Tensor& v) {
    return v.detach().to(torch::kCPU, torch::kDouble);
  };
  return {exact(value), exact(gradient), exact(torch::cat(flat))};
}

double relative(const torch::Tensor& found, const torch::Tensor& exact) {
  return ((found - exact).norm() / exact.norm()).item<double>();
}

}  // namespace

std::vector<PrecisionError> precision_errors(torch::Device device) {
  const Found exact = compute(Precision::float32, torch::kDouble, device);
  std::vector<PrecisionError> errors;
  const std::array<std::pair<const char*, Precision>, 3> all = {
      {{"float32", Precision::float32}, {"tf32", Precision::tf32}, {"bf16", Precision::bf16}}};
  for (const auto& [name, precision] : all) {
    if (precision == Precision::tf32 && !device.is_cuda()) continue;  // float32 on a CPU
    const Found found = compute(precision, torch::kFloat, device);
    errors.push_back({name, relative(found.energy, exact.energy),
                      relative(found.gradient, exact.gradient),
                      relative(found.second, exact.second)});
  }
  return errors;
}

}  // namespace ddaebm
