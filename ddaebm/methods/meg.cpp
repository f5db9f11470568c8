#include "ddaebm/methods/meg.h"

#include "ddaebm/error.h"

namespace ddaebm {

Meg::Meg(const std::vector<int64_t>& event, const PlainConfig& net, const MegConfig& config,
         const torch::TensorOptions& options)
    : PlainMethod(event, net, options),
      config_(config),
      statistics_(make_plain_encoder(dimension_ + latent_, 1, net)) {
  add("generator", "statistics", statistics_.ptr());
}

const std::vector<std::string>& Meg::loss_names() const {
  static const std::vector<std::string> names = {"energy",      "generator",   "penalty",
                                                 "energy_real", "energy_fake", "mistakes"};
  return names;
}

torch::Tensor Meg::mistakes(const torch::Tensor& x, const torch::Tensor& z) {
  const auto verdict = [&](const torch::Tensor& latent) {
    return statistics_(torch::cat({x, latent}, 1));
  };
  // Rows are independent, so a shift by one row pairs x with a z of the same distribution.
  return 0.5 *
         (torch::softplus(-verdict(z)).mean() + torch::softplus(verdict(z.roll(1, 0))).mean());
}

torch::Tensor Meg::step(const torch::Tensor& x0, const torch::Tensor& /*progress*/, Random& random,
                        const Update& update) {
  const int64_t n = x0.size(0) / config_.energy_updates;
  if (n < 2 || n * config_.energy_updates != x0.size(0)) {
    fail("train.batch = {} is to be parted among game.energy_updates = {}; make it a multiple",
         x0.size(0), config_.energy_updates);
  }
  Contrast c;
  for (const auto& real : x0.split(n)) {
    torch::Tensor fake;
    {
      const torch::NoGradGuard no_grad;
      fake = generator_(draw_latent(n, random));
    }
    c = contrast_step(real, fake, config_.contrast, update);
  }
  const auto z = draw_latent(n, random);
  const auto fake = generator_(z);
  const auto information = mistakes(fake, z);
  const auto loss = config_.information_weight * information - energy(fake).mean();
  update(kGenerator, loss, /*last=*/true);
  return torch::stack({c.loss, loss, c.penalty, c.real, c.fake, information}).detach();
}

std::unique_ptr<MethodSettings> meg_settings() {
  return std::make_unique<PlainSettings<Meg, MegConfig>>();
}

}  // namespace ddaebm
