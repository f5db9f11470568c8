#pragma once

#include "ddaebm/config.h"
#include "ddaebm/nets/networks.h"
#include "ddaebm/random.h"

namespace ddaebm {

// Langevin dynamics, for energies that cannot be drawn from: x moves by h/2 dE/dx + sqrt(h) noise.
// The step size h falls geometrically.
struct LangevinConfig {
  int64_t steps = 100;
  double start_std = 1.0;
  double step_begin = 1e-3;
  double step_end = 1e-3;

  void visit(Fields& f) {
    f("steps", steps, at_least(1), "Langevin steps of a sample, where the energy is no flow");
    f("start_std", start_std, more_than(0), "standard deviation of the points they start from");
    f("step_begin", step_begin, more_than(0), "size of the first step, a variance");
    f("step_end", step_end, more_than(0), "of the last; geometric in between");
  }
};

// n points [n, dimension] drawn from exp(energy): exactly from a flow, by Langevin steps otherwise.
torch::Tensor sample_energy(EnergyNet& energy, int64_t n, int64_t dimension,
                            const LangevinConfig& config, const torch::TensorOptions& options,
                            Random& random);

}  // namespace ddaebm
