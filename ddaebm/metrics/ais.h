#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include <torch/types.h>

#include "ddaebm/ops/time_mlp.h"

// Annealed importance sampling: the normaliser of a density that is known up to it.
namespace ddaebm {

// An unnormalised log-density and its gradient: x [N, ...] -> [N], [N, ...].
using DensityAndGradient = std::function<ops::ValueAndGradient(const torch::Tensor& x)>;

struct AisConfig {
  int64_t chains = 500;
  int64_t bridges = 1000;  // densities on the way, the last included
  int64_t leapfrog = 5;    // steps of a Hamiltonian move; one move a bridge
  int64_t settle = 50;     // moves that the reverse chains make before they set out
  uint64_t seed = 0;
  std::function<void(int64_t done, int64_t total)> progress = {};  // bridges crossed; may be empty
};

// An estimate of log Z from one kind of chain.
struct AisEstimate {
  double log_z = 0.0;
  double error = 0.0;      // its standard deviation, as the spread of the weights has it
  double effective = 0.0;  // (sum w)^2 / sum w^2: how many chains carry the weight
};
struct AisResult {
  AisEstimate forward;      // exp of it is unbiased, so it is too low on average
  AisEstimate reverse;      // likewise too high, where its chains begin with draws of the density
  double acceptance = 0.0;  // share of moves accepted, of the forward chains
  torch::Tensor draws;      // of the density: where the forward chains arrive, by weight
};

// log of the integral of exp(path.back()). Chains start at a Gaussian fitted to `fit` and walk
// through the path's densities in order, by geometric bridges between neighbours (the Gaussian
// first) and a Hamiltonian move at each; the path may be the one density. Step sizes are found by a
// pilot walk, so that they do not depend on the chains that are weighed. Works in the type and on
// the device of `fit`. Reverse chains begin at `ends`, draws of path.back(); where `ends` is
// undefined, at where the forward chains arrive, drawn by weight. A gap between both estimates asks
// for more bridges; a mode that no chain finds shows in neither.
//
// fit [N, ...]: its covariance is used where N >= 2 D, else its variances alone; a singular one is
// an Error, and so are fewer than two rows, numbers that are not finite, and weights that are none.
AisResult annealed_importance_sampling(const std::vector<DensityAndGradient>& path,
                                       const torch::Tensor& fit, const torch::Tensor& ends,
                                       const AisConfig& config);

}  // namespace ddaebm
