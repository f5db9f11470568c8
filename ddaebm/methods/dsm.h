#pragma once

#include "ddaebm/methods/energy_samples.h"
#include "ddaebm/methods/one_energy.h"

namespace ddaebm {

struct DsmConfig {
  double sigma = 0.16;

  void visit(Fields& f) {
    f("sigma", sigma, more_than(0), "standard deviation of the noise; the density learned has it");
  }
};

// Denoising score matching (Vincent 2011): data with noise, x + sigma eps, have the score
// E[-eps / sigma | x + sigma eps]; minimises the mean of |sigma dE/dx(x + sigma eps) + eps|^2 / 2.
class Dsm : public OneEnergy {
 public:
  Dsm(const DsmConfig& config, const LangevinConfig& langevin, std::shared_ptr<EnergyNet> energy,
      int64_t dimension, const torch::TensorOptions& options);
  torch::Tensor losses(const torch::Tensor& x0, Random& random) override;
  torch::Tensor sample(int64_t n, Random& random) override;

 private:
  DsmConfig config_;
  LangevinConfig langevin_;
  int64_t dimension_;
};

std::unique_ptr<MethodSettings> dsm_settings();

}  // namespace ddaebm
