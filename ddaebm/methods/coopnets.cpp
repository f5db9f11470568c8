#include "ddaebm/methods/coopnets.h"

#include <torch/csrc/autograd/autograd.h>

namespace ddaebm {

Coopnets::Coopnets(const std::vector<int64_t>& event, const PlainConfig& net,
                   const CoopnetsConfig& config, const torch::TensorOptions& options)
    : PlainMethod(event, net, options),
      config_(config),
      precision_(config.reference_std > 0 ? 1 / (config.reference_std * config.reference_std) : 0) {
}

const std::vector<std::string>& Coopnets::loss_names() const {
  static const std::vector<std::string> names = {"energy",      "generator",   "penalty",
                                                 "energy_real", "energy_fake", "revision"};
  return names;
}

torch::Tensor Coopnets::log_density(const torch::Tensor& x) {
  return PlainMethod::log_density(x) - 0.5 * precision_ * x.square().sum(1);
}

torch::Tensor Coopnets::revise(const torch::Tensor& x, Random& random) {
  const torch::AutoGradMode with_gradients(true);
  const Frozen constant(*energy_);
  const double delta = config_.langevin_step;
  auto at = x.detach();
  for (int64_t i = 0; i < config_.langevin_steps; ++i) {
    const auto input = at.detach().requires_grad_();
    const auto slope = torch::autograd::grad({energy(input).sum()}, {input})[0] - precision_ * at;
    at = at + 0.5 * delta * delta * slope + delta * random.normal(at.sizes(), options_);
  }
  return at;
}

torch::Tensor Coopnets::step(const torch::Tensor& x0, const torch::Tensor& /*progress*/,
                             Random& random, const Update& update) {
  const auto made = generator_(draw_latent(x0.size(0), random));
  const auto revised = revise(made, random);
  // The reference has no parameters, so the contrast of E alone is the gradient of likelihood.
  const Contrast c = contrast_step(x0, revised, config_.contrast, update);

  const auto revision = (revised - made).square().sum(1).mean();
  const auto loss = revision / (2 * config_.generator_std * config_.generator_std);
  update(kGenerator, loss, /*last=*/true);
  return torch::stack({c.loss, loss, c.penalty, c.real, c.fake, revision}).detach();
}

torch::Tensor Coopnets::sample(int64_t n, Random& random) {
  return revise(PlainMethod::sample(n, random), random);
}

std::unique_ptr<MethodSettings> coopnets_settings() {
  return std::make_unique<PlainSettings<Coopnets, CoopnetsConfig>>();
}

}  // namespace ddaebm
