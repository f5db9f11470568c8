#pragma once

#include "ddaebm/methods/plain_method.h"

namespace ddaebm {

struct CoopnetsConfig {
  ContrastConfig contrast;
  int64_t langevin_steps = 15;
  double langevin_step = 0.002;
  double reference_std = 0.0;
  double generator_std = 0.3;

  void visit(Fields& f) {
    contrast.visit(f);
    f("langevin_steps", langevin_steps, at_least(0), "steps that revise a generated point");
    f("langevin_step", langevin_step, more_than(0),
      "delta: x + delta^2 / 2 dE/dx + delta noise is a step");
    f("reference_std", reference_std, at_least(0),
      "standard deviation of a Gaussian reference in E; 0: none");
    f("generator_std", generator_std, more_than(0),
      "standard deviation of data about G(z), the scale of the generator's squares");
  }
};

// Cooperative networks (Xie et al., 2020). Langevin dynamics on E revise what the generator made;
// E learns from data against the revised points, the generator to make the revised points at once.
class Coopnets : public PlainMethod {
 public:
  Coopnets(const std::vector<int64_t>& event, const PlainConfig& net, const CoopnetsConfig& config,
           const torch::TensorOptions& options);

  const std::vector<std::string>& loss_names() const override;
  torch::Tensor step(const torch::Tensor& x0, const torch::Tensor& progress, Random& random,
                     const Update& update) override;
  torch::Tensor log_density(const torch::Tensor& x) override;
  // G(z), revised as in training.
  torch::Tensor sample(int64_t n, Random& random) override;

  // x after `langevin_steps` steps, without a graph.
  torch::Tensor revise(const torch::Tensor& x, Random& random);

 private:
  CoopnetsConfig config_;
  double precision_;  // of the reference
};

std::unique_ptr<MethodSettings> coopnets_settings();

}  // namespace ddaebm
