#pragma once

#include <optional>

#include "ddaebm/diffusion/process.h"
#include "ddaebm/methods/one_energy.h"
#include "ddaebm/nets/plain_networks.h"

namespace ddaebm {

// Maximum likelihood of NICE. A flow with a time embedding is the paper's MLE(t): t is uniform in
// 0..T-1, x_t is diffused from x_0, and log p(x_t, t) grows, so that p(., t) comes to be q(x_t), as
// the energy of DDAEBM does at its optimum. log_density and samples are those of t = 0.
class Mle : public OneEnergy {
 public:
  Mle(const Schedule& schedule, int64_t dimension, const NiceConfig& nice,
      const torch::TensorOptions& options);
  torch::Tensor losses(const torch::Tensor& x0, Random& random) override;
  torch::Tensor log_density(const torch::Tensor& x) override;
  torch::Tensor sample(int64_t n, Random& random) override;

 private:
  Mle(const Schedule& schedule, int64_t dimension, const NiceConfig& nice,
      std::shared_ptr<NiceEnergy> energy, const torch::TensorOptions& options);
  // n times t = 0; undefined where the flow knows no time.
  torch::Tensor start(int64_t n) const;

  int64_t dimension_;
  Nice flow_;
  std::optional<Process> process_;  // where the flow knows the time
};

std::unique_ptr<MethodSettings> mle_settings();

}  // namespace ddaebm
