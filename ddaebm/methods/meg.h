#pragma once

#include "ddaebm/methods/plain_method.h"

namespace ddaebm {

// Defaults are those of MEG's authors on toy data; their penalty has no 1/2, so gamma is twice
// their lambda.
struct MegConfig {
  ContrastConfig contrast{.gamma = 0.2};
  int64_t energy_updates = 5;
  double information_weight = 1.0;

  void visit(Fields& f) {
    contrast.visit(f);
    f("energy_updates", energy_updates, at_least(1),
      "updates of the energy before one of the generator; each takes its part of the batch");
    f("information_weight", information_weight, at_least(0),
      "weight of the information between z and G(z), which stands for entropy");
  }
};

// Maximum entropy generators (Kumar et al., 2019). The entropy of G(z) is the information between z
// and G(z); a network T tells pairs (G(z), z) from shuffled ones, which bounds it.
class Meg : public PlainMethod {
 public:
  Meg(const std::vector<int64_t>& event, const PlainConfig& net, const MegConfig& config,
      const torch::TensorOptions& options);

  const std::vector<std::string>& loss_names() const override;
  torch::Tensor step(const torch::Tensor& x0, const torch::Tensor& progress, Random& random,
                     const Update& update) override;

  // The mean cross-entropy of T's verdicts on pairs (x, z), and on pairs (x, z of another row):
  // log 2 where T cannot tell them apart, less the more x knows of z. T wants it low, and so does
  // the generator.
  torch::Tensor mistakes(const torch::Tensor& x, const torch::Tensor& z);

 private:
  MegConfig config_;
  Mlp statistics_;  // T, [x, z] -> a logit
};

std::unique_ptr<MethodSettings> meg_settings();

}  // namespace ddaebm
