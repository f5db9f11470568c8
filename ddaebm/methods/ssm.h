#pragma once

#include "ddaebm/methods/energy_samples.h"
#include "ddaebm/methods/one_energy.h"

namespace ddaebm {

enum class Slice { rademacher, gaussian };

// Defaults are those of the authors' NICE experiment; VERA's version of it has Gaussian slices and
// variance reduction.
struct SsmConfig {
  Slice slice = Slice::rademacher;
  bool variance_reduction = false;

  void visit(Fields& f) {
    f("slice", slice, {"rademacher", "gaussian"}, "distribution of the direction v");
    f("variance_reduction", variance_reduction,
      "|s|^2 in the place of (v s)^2, which is its mean over v");
  }
};

// Sliced score matching (Song et al. 2019): with s = dE/dx, minimises the mean of
// v^T (ds/dx) v + (v^T s)^2 / 2 over data and random directions v, which differs from half the
// squared distance of s and the data's score by a constant.
class Ssm : public OneEnergy {
 public:
  Ssm(const SsmConfig& config, const LangevinConfig& langevin, std::shared_ptr<EnergyNet> energy,
      int64_t dimension, const torch::TensorOptions& options);
  torch::Tensor losses(const torch::Tensor& x0, Random& random) override;
  torch::Tensor sample(int64_t n, Random& random) override;

 private:
  SsmConfig config_;
  LangevinConfig langevin_;
  int64_t dimension_;
};

std::unique_ptr<MethodSettings> ssm_settings();

}  // namespace ddaebm
