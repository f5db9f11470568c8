#include "ddaebm/methods/bidvl.h"

namespace ddaebm {

Bidvl::Bidvl(const std::vector<int64_t>& event, const PlainConfig& net, const BidvlConfig& config,
             const torch::TensorOptions& options)
    : PlainMethod(event, net, options),
      config_(config),
      encoder_(make_plain_encoder(dimension_, 2 * latent_, net)) {
  add("generator", "encoder", encoder_.ptr());
}

const std::vector<std::string>& Bidvl::loss_names() const {
  static const std::vector<std::string> names = {
      "energy", "generator", "penalty", "energy_real", "energy_fake", "latent", "reconstruction"};
  return names;
}

Gaussian Bidvl::infer(const torch::Tensor& x) {
  const auto halves = encoder_(x).chunk(2, 1);
  return {halves[0], halves[1]};
}

torch::Tensor Bidvl::latent_error(const torch::Tensor& fake, const torch::Tensor& z) {
  const Frozen constant(*encoder_);
  return (infer(fake).mean - z).square().mean();
}

torch::Tensor Bidvl::reconstruction_loss(const torch::Tensor& x, Random& random) {
  const Gaussian q = infer(x);
  const auto z = q.mean + (0.5 * q.log_variance).exp() * random.normal(q.mean.sizes(), options_);
  return ((x - generator_(z)).square().sum(1) + kl_to_prior(q)).mean();
}

torch::Tensor Bidvl::step(const torch::Tensor& x0, const torch::Tensor& /*progress*/,
                          Random& random, const Update& update) {
  const auto z = draw_latent(x0.size(0), random);
  const auto fake = generator_(z);
  const Contrast c = contrast_step(x0, fake, config_.contrast, update);

  const auto latent = latent_error(fake, z);
  const auto reconstruction = reconstruction_loss(x0, random);
  const auto loss = config_.latent_weight * latent - energy(fake).mean() +
                    config_.reconstruction_weight * reconstruction;
  auto squares = torch::zeros({}, options_);
  if (config_.weight_decay > 0) {
    for (const auto& network : {generator_, encoder_}) {
      for (const auto& weight : network->parameters()) squares = squares + weight.square().sum();
    }
  }
  update(kGenerator, loss + 0.5 * config_.weight_decay * squares, /*last=*/true);
  return torch::stack({c.loss, loss, c.penalty, c.real, c.fake, latent, reconstruction}).detach();
}

std::unique_ptr<MethodSettings> bidvl_settings() {
  return std::make_unique<PlainSettings<Bidvl, BidvlConfig>>();
}

}  // namespace ddaebm
