#include "ddaebm/methods/plain_method.h"

#include <algorithm>

#include "ddaebm/ops/beside.h"

namespace ddaebm {

Contrast contrast(EnergyNet& energy, const torch::Tensor& real, const torch::Tensor& fake,
                  const ContrastConfig& config,
                  const std::function<void(const torch::Tensor& loss)>& part) {
  Contrast c;
  torch::Tensor real_loss, fake_loss;
  ops::Beside beside(real.device(), ops::Beside::Lane::first);
  beside.run([&] {
    c.fake = energy.forward(fake.detach(), {}).mean();
    fake_loss = config.fake_weight * c.fake;
    if (part) part(fake_loss);
  });
  beside.join([&] {
    if (config.gamma > 0) {
      auto [value, gradient] = energy.value_and_gradient(real, {});
      c.real = value.mean();
      c.penalty = 0.5 * config.gamma * gradient.square().sum(1).mean();
      real_loss = c.penalty - c.real;
    } else {
      c.real = energy.forward(real, {}).mean();
      c.penalty = torch::zeros_like(c.real);
      real_loss = -c.real;
    }
    if (part) part(real_loss);
  });
  c.loss = fake_loss + real_loss;
  return c;
}

Frozen::Frozen(torch::nn::Module& network) : parameters_(network.parameters()) {
  for (auto& parameter : parameters_) parameter.set_requires_grad(false);
}
Frozen::~Frozen() {
  for (auto& parameter : parameters_) parameter.set_requires_grad(true);
}

PlainMethod::PlainMethod(const std::vector<int64_t>& event, const PlainConfig& net,
                         const torch::TensorOptions& options)
    : dimension_(vector_dimension(event)),
      latent_(net.latent),
      options_(options),
      module_(std::make_shared<torch::nn::Module>("plain")),
      energy_(make_plain_energy(dimension_, net)),
      generator_(make_plain_generator(dimension_, net)) {
  add("energy", "energy", energy_);
  add("generator", "generator", generator_.ptr());
}

void PlainMethod::add(const std::string& player, const std::string& name,
                      const std::shared_ptr<torch::nn::Module>& network) {
  module_->register_module(name, network);
  network->to(options_.device(), c10::typeMetaToScalarType(options_.dtype()));
  const auto found = std::find_if(players_.begin(), players_.end(),
                                  [&](const Player& p) { return p.name == player; });
  if (found == players_.end()) {
    players_.push_back({player, {name}});
  } else {
    found->networks.push_back(name);
  }
}

Contrast PlainMethod::contrast_step(const torch::Tensor& real, const torch::Tensor& fake,
                                    const ContrastConfig& config, const Update& update) {
  Contrast c = contrast(*energy_, real, fake, config,
                        [&](const torch::Tensor& loss) { update(kEnergy, loss, /*last=*/false); });
  update(kEnergy, {}, /*last=*/true);
  return c;
}

torch::Tensor PlainMethod::draw_latent(int64_t n, Random& random) const {
  return random.normal({n, latent_}, options_);
}

torch::Tensor PlainMethod::log_density(const torch::Tensor& x) { return energy(x); }

torch::Tensor PlainMethod::sample(int64_t n, Random& random) {
  const torch::NoGradGuard no_grad;
  return generator_(draw_latent(n, random));
}

}  // namespace ddaebm
