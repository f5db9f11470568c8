#include "ddaebm/methods/ssm.h"

#include <torch/csrc/autograd/autograd.h>

#include "ddaebm/error.h"
#include "ddaebm/nets/plain_networks.h"

namespace ddaebm {

Ssm::Ssm(const SsmConfig& config, const LangevinConfig& langevin, std::shared_ptr<EnergyNet> energy,
         int64_t dimension, const torch::TensorOptions& options)
    : OneEnergy(std::move(energy), options),
      config_(config),
      langevin_(langevin),
      dimension_(dimension) {}

torch::Tensor Ssm::losses(const torch::Tensor& x0, Random& random) {
  const auto x = x0.detach().requires_grad_();
  const auto v = config_.slice == Slice::gaussian
                     ? random.normal(x.sizes(), options_)
                     : random.integers(2, x.sizes()).to(options_) * 2 - 1;
  const auto s = energy_->value_and_gradient(x, {}).gradient;
  const auto along = (v * s).sum(1);
  const auto curved = torch::autograd::grad({along.sum()}, {x}, {}, /*retain_graph=*/true,
                                            /*create_graph=*/true)[0];
  const auto square = config_.variance_reduction ? s.square().sum(1) : along.square();
  return (v * curved).sum(1) + 0.5 * square;
}

torch::Tensor Ssm::sample(int64_t n, Random& random) {
  return sample_energy(*energy_, n, dimension_, langevin_, options_, random);
}

namespace {

struct SsmSettings : MethodSettings {
  PlainConfig net;
  SsmConfig score;
  LangevinConfig langevin;
  SsmSettings() { net.energy_activation = PlainActivation::silu; }

  void visit(Fields& f) override {
    f.section("net", net);
    f.section("score", score);
    f.section("langevin", langevin);
  }
  std::unique_ptr<Method> build(const std::vector<int64_t>& event,
                                const torch::TensorOptions& options) const override {
    if (net.energy == EnergyKind::mlp && net.energy_activation == PlainActivation::prelu) {
      fail(
          "net.energy_activation is \"prelu\", whose energies have no curvature to match; set "
          "\"silu\", or net.energy=\"nice\"");
    }
    const auto dimension = vector_dimension(event);
    return std::make_unique<Ssm>(score, langevin, make_plain_energy(dimension, net), dimension,
                                 options);
  }
};

}  // namespace

std::unique_ptr<MethodSettings> ssm_settings() { return std::make_unique<SsmSettings>(); }

}  // namespace ddaebm
