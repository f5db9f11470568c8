#include "ddaebm/methods/mle.h"

#include "ddaebm/error.h"

namespace ddaebm {

Mle::Mle(const Schedule& schedule, int64_t dimension, const NiceConfig& nice,
         const torch::TensorOptions& options)
    : Mle(schedule, dimension, nice, std::make_shared<NiceEnergy>(dimension, schedule.steps, nice),
          options) {}

Mle::Mle(const Schedule& schedule, int64_t dimension, const NiceConfig& nice,
         std::shared_ptr<NiceEnergy> energy, const torch::TensorOptions& options)
    : OneEnergy(energy, options), dimension_(dimension), flow_(energy->flow) {
  if (nice.embedding > 0) process_.emplace(schedule, options);
}

torch::Tensor Mle::start(int64_t n) const {
  return process_ ? torch::zeros({n}, options_.dtype(torch::kLong)) : torch::Tensor();
}

torch::Tensor Mle::losses(const torch::Tensor& x0, Random& random) {
  if (!process_) return -energy_->forward(x0, {});
  const auto t = random.integers(process_->steps(), {x0.size(0)});
  const auto eps = random.normal(x0.sizes(), options_);
  return -energy_->forward(process_->at(t, x0.dim()).diffuse(x0, eps), t);
}

torch::Tensor Mle::log_density(const torch::Tensor& x) {
  return energy_->forward(x, start(x.size(0)));
}

torch::Tensor Mle::sample(int64_t n, Random& random) {
  const torch::NoGradGuard no_grad;
  return flow_->inverse(random.normal({n, dimension_}, options_), start(n));
}

namespace {

struct MleSettings : MethodSettings {
  ScheduleConfig diffusion;
  PlainConfig net;
  MleSettings() { net.energy = EnergyKind::nice; }

  void visit(Fields& f) override {
    f.section("diffusion", diffusion);
    f.section("net", net);
  }
  std::unique_ptr<Method> build(const std::vector<int64_t>& event,
                                const torch::TensorOptions& options) const override {
    if (net.energy != EnergyKind::nice) {
      fail("net.energy is \"mlp\"; maximum likelihood needs a density that is exact: set \"nice\"");
    }
    return std::make_unique<Mle>(Schedule(diffusion), vector_dimension(event), net.nice, options);
  }
};

}  // namespace

std::unique_ptr<MethodSettings> mle_settings() { return std::make_unique<MleSettings>(); }

}  // namespace ddaebm
