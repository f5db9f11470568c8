#pragma once

#include <cstdint>
#include <vector>

#include <torch/types.h>

#include "ddaebm/train/model.h"

// What all energies of a model say of a datum, and whether that is usual. A datum may be too likely
// as well as too unlikely, and at one time only: smooth images have high E(x, 0), which data hardly
// ever have.
namespace ddaebm {

// The profiles of data [N, ...] -> [N, 2 T], float64: E(x_t, t) and log |dE/dx(x_t, t)| for every
// t, x_t the data with the noise that training gives them at t.
torch::Tensor energy_profiles(Model& model, const torch::Tensor& data, uint64_t seed);

// A Gaussian fitted to the profiles of data that are like the model's own.
class UsualProfiles {
 public:
  explicit UsualProfiles(const torch::Tensor& profiles);
  // Log-densities of profiles [N, F] -> [N] up to a constant: minus half their squared Mahalanobis
  // distance.
  std::vector<double> scores(const torch::Tensor& profiles) const;

 private:
  torch::Tensor mean_;    // [F]
  torch::Tensor whiten_;  // [F, F]: rows (profile - mean) whiten_ have unit covariance
};

}  // namespace ddaebm
