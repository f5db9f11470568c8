#pragma once

#include "ddaebm/io/histogram.h"
#include "ddaebm/metrics/ais.h"
#include "ddaebm/train/model.h"

namespace ddaebm {

// How chains come from a Gaussian to E(., 0): straight, or through the energies of the model's own
// times, E(., T-1) first.
enum class AnnealingPath { straight, times };

struct Likelihood {
  AisResult normaliser;
  double mean = 0.0;   // of log p(x), nats a datum in the data's own units
  double error = 0.0;  // its standard deviation: of the mean over the data, and of log Z
  // E of the data, and of points drawn from exp(E): alike where E is the data's log-density.
  std::vector<NumberSet> energies;
};

// The log-likelihood of data [N, ...] by E(x, 0) - log Z.
Likelihood estimate_likelihood(Model& model, const torch::Tensor& data, AnnealingPath path,
                               const AisConfig& config);

}  // namespace ddaebm
