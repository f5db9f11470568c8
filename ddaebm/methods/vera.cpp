#include "ddaebm/methods/vera.h"

#include <cmath>

#include "ddaebm/error.h"
#include "ddaebm/ops/beside.h"

namespace ddaebm {
namespace {

constexpr size_t kPosterior = 2;

// log N(x; mean, scale^2) up to its constant, summed over the last dimension.
torch::Tensor log_normal(const torch::Tensor& x, const torch::Tensor& mean,
                         const torch::Tensor& scale) {
  return (-0.5 * ((x - mean) / scale).square() - scale.log()).sum(-1);
}

}  // namespace

ScaleImpl::ScaleImpl(int64_t size, double initial)
    : log_scale(register_parameter("log_scale",
                                   torch::full({size}, std::log(initial), torch::kDouble))) {}

void ScaleImpl::clamp(double low, double high) {
  const torch::NoGradGuard no_grad;
  log_scale.clamp_(std::log(low), std::log(high));
}

Vera::Vera(const std::vector<int64_t>& event, const PlainConfig& net, const VeraConfig& config,
           const torch::TensorOptions& options)
    : PlainMethod(event, net, options),
      config_(config),
      sigma_(1, config.sigma),
      posterior_scale_(net.latent, config.posterior_scale) {
  if (config.sigma_min > config.sigma_max) {
    fail("game.sigma_min = {} is more than game.sigma_max = {}; exchange them", config.sigma_min,
         config.sigma_max);
  }
  add("generator", "sigma", sigma_.ptr());
  if (config.entropy_weight > 0) add("posterior", "posterior_scale", posterior_scale_.ptr());
}

const std::vector<std::string>& Vera::loss_names() const {
  static const std::vector<std::string> with_entropy = {
      "energy", "generator", "penalty", "energy_real", "energy_fake", "sigma", "elbo"};
  static const std::vector<std::string> without = {with_entropy.begin(), with_entropy.end() - 1};
  return config_.entropy_weight > 0 ? with_entropy : without;
}

torch::Tensor Vera::negative_score(const torch::Tensor& z, const torch::Tensor& eps,
                                   Random& random) {
  const torch::NoGradGuard no_grad;
  const int64_t n = z.size(0);
  const auto sigma = sigma_->forward();
  const auto scale = posterior_scale_->forward();
  const auto moves =
      random.normal({n, config_.posterior_samples, latent_}, options_).transpose(0, 1);
  const auto near = z + scale * moves;
  // One pass for z and for all z' around it: under batch norm the generator is a function of its
  // batch, and x - G(z') must compare points of the same function.
  const auto means = generator_(torch::cat({z, near.flatten(0, 1)}));
  const auto x = means.slice(0, 0, n) + sigma * eps;
  const auto away = x - means.slice(0, n).view({config_.posterior_samples, n, dimension_});
  const auto log_joint =
      -0.5 * (near.square().sum(-1) + away.square().sum(-1) / sigma.square());  // log q(x, z')
  const auto log_proposal = -0.5 * moves.square().sum(-1);                      // log N(z'; z, s^2)
  const auto weights = torch::softmax(log_joint - log_proposal, 0).unsqueeze(-1);
  return (weights * away).sum(0) / sigma.square();
}

torch::Tensor Vera::posterior_elbo(const torch::Tensor& x, const torch::Tensor& z, Random& random) {
  const auto scale = posterior_scale_->forward();
  const auto near = z + scale * random.normal(z.sizes(), options_);
  const auto log_joint = -0.5 * near.square().sum(1) +
                         log_normal(x.detach(), generator_(near), sigma_->forward().detach());
  return log_joint.mean() + scale.log().sum();
}

torch::Tensor Vera::step(const torch::Tensor& x0, const torch::Tensor& /*progress*/, Random& random,
                         const Update& update) {
  const auto z = draw_latent(x0.size(0), random);
  const auto eps = random.normal(x0.sizes(), options_);
  // The same points serve both updates.
  const auto fake = generator_(z) + sigma_->forward() * eps;

  // What the energy does and what the entropy asks for know nothing of each other.
  ops::Beside entropy(x0.device(), ops::Beside::Lane::second);
  torch::Tensor score, elbo;
  if (config_.entropy_weight > 0) {
    entropy.run([&] {
      score = negative_score(z, eps, random);
      elbo = posterior_elbo(fake, z, random);
      update(kPosterior, -elbo, /*last=*/false);
    });
  }
  Contrast c;
  torch::Tensor loss;
  entropy.join([&] {
    c = contrast_step(x0, fake, config_.contrast, update);
    loss = -energy(fake).mean();
  });
  std::vector<torch::Tensor> losses = {c.loss, loss,   c.penalty,
                                       c.real, c.fake, sigma_->forward().squeeze(0)};
  if (config_.entropy_weight > 0) {
    // dH = E[-d log q(x)/dx dx]: the score is held fixed, x moves with the generator.
    loss = loss - config_.entropy_weight * (score * fake).sum(1).mean();
    losses.push_back(elbo);
    update(kPosterior, {}, /*last=*/true);
  }
  update(kGenerator, loss, /*last=*/true);
  sigma_->clamp(config_.sigma_min, config_.sigma_max);
  return torch::stack(losses).detach();
}

torch::Tensor Vera::sample(int64_t n, Random& random) {
  const torch::NoGradGuard no_grad;
  const auto mean = PlainMethod::sample(n, random);
  return mean + sigma_->forward() * random.normal(mean.sizes(), options_);
}

std::unique_ptr<MethodSettings> vera_settings() {
  return std::make_unique<PlainSettings<Vera, VeraConfig>>();
}

std::unique_ptr<MethodSettings> wgan0gp_settings() {
  auto settings = std::make_unique<PlainSettings<Vera, VeraConfig>>();
  settings->game.entropy_weight = 0;
  return settings;
}

}  // namespace ddaebm
