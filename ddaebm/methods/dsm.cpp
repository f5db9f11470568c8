#include "ddaebm/methods/dsm.h"

#include "ddaebm/nets/plain_networks.h"

namespace ddaebm {

Dsm::Dsm(const DsmConfig& config, const LangevinConfig& langevin, std::shared_ptr<EnergyNet> energy,
         int64_t dimension, const torch::TensorOptions& options)
    : OneEnergy(std::move(energy), options),
      config_(config),
      langevin_(langevin),
      dimension_(dimension) {}

// The NICE experiment's code has sigma^2 times this. The factor moves no minimum, but with a small
// sigma it brings gradients down to the guard in Adam's denominator.
torch::Tensor Dsm::losses(const torch::Tensor& x0, Random& random) {
  const auto eps = random.normal(x0.sizes(), options_);
  const auto score = energy_->value_and_gradient(x0 + config_.sigma * eps, {}).gradient;
  return 0.5 * (config_.sigma * score + eps).square().sum(1);
}

torch::Tensor Dsm::sample(int64_t n, Random& random) {
  return sample_energy(*energy_, n, dimension_, langevin_, options_, random);
}

namespace {

struct DsmSettings : MethodSettings {
  PlainConfig net;
  DsmConfig score;
  LangevinConfig langevin;

  void visit(Fields& f) override {
    f.section("net", net);
    f.section("score", score);
    f.section("langevin", langevin);
  }
  std::unique_ptr<Method> build(const std::vector<int64_t>& event,
                                const torch::TensorOptions& options) const override {
    const auto dimension = vector_dimension(event);
    return std::make_unique<Dsm>(score, langevin, make_plain_energy(dimension, net), dimension,
                                 options);
  }
};

}  // namespace

std::unique_ptr<MethodSettings> dsm_settings() { return std::make_unique<DsmSettings>(); }

}  // namespace ddaebm
