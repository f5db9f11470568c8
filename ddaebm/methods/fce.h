#pragma once

#include "ddaebm/methods/method.h"
#include "ddaebm/nets/glow.h"
#include "ddaebm/nets/networks.h"

namespace ddaebm {

struct FceConfig {
  double log_z = 0.0;
  double pretrain = 0.1;
  int64_t energy_updates = 1;

  void visit(Fields& f) {
    f("log_z", log_z, "what the logarithm of the normaliser is at the start");
    f("pretrain", pretrain, between(0, 1),
      "share of the run at its start in which the flow learns by maximum likelihood");
    f("energy_updates", energy_updates, at_least(1), "updates of the energy for one of the flow");
  }
};

// log p(x) = f(x) - c, with c learned beside f.
struct NormalisedEnergy : EnergyNet {
  NormalisedEnergy(std::shared_ptr<EnergyNet> energy, double log_z)
      : f(register_module("f", std::move(energy))),
        c(register_parameter("c", torch::full({}, log_z, torch::kDouble))) {}
  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& t) override {
    return f->forward(x, t) - c;
  }
  std::shared_ptr<EnergyNet> f;
  torch::Tensor c;
};

// Flow contrastive estimation (Gao et al. 2020): the energy tells data from points of a flow, whose
// density q is known, by log p - log q; the flow hides its points from it. Both play for
// V = E_data log p / (p + q) + E_q log q / (p + q), the energy for more, the flow for less.
class Fce : public Method {
 public:
  Fce(const FceConfig& config, std::shared_ptr<EnergyNet> energy, Glow flow, int64_t dimension,
      const torch::TensorOptions& options);

  torch::nn::Module& module() override { return *module_; }
  const std::vector<Player>& players() const override;
  const std::vector<std::string>& loss_names() const override;
  torch::Tensor step(const torch::Tensor& x0, const torch::Tensor& progress, Random& random,
                     const Update& update) override;
  torch::Tensor log_density(const torch::Tensor& x) override;
  torch::Tensor sample(int64_t n, Random& random) override;

  // V, from data with their log q, [N], and from points that the flow has drawn.
  torch::Tensor value(const torch::Tensor& x, const torch::Tensor& log_q,
                      const GlowImpl::Drawn& drawn);

 private:
  FceConfig config_;
  std::shared_ptr<NormalisedEnergy> energy_;
  Glow flow_;
  int64_t dimension_;
  torch::TensorOptions options_;
  std::shared_ptr<torch::nn::Module> module_;
};

std::unique_ptr<MethodSettings> fce_settings();

}  // namespace ddaebm
