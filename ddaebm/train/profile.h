#pragma once

#include <filesystem>
#include <vector>

#include <torch/types.h>

#include "ddaebm/train/model.h"

// What a model sees of a datum, and whether that is usual. A datum may be too likely as well as too
// unlikely: smooth images have high E(x, 0), and slopes that are too gentle for it.
namespace ddaebm {

// The profiles of data [N, ...] -> [N, F], float64: E(x, t) for every t, the logarithm of the norm
// of dE/dx(x, 0), for images octave by octave of its resolution, and the model's features of x.
torch::Tensor energy_profiles(Model& model, const torch::Tensor& data);

// A Gaussian fitted to the profiles of data that are like the model's own.
class UsualProfiles {
 public:
  explicit UsualProfiles(const torch::Tensor& profiles);
  // Log-densities of profiles [N, F] -> [N] up to a constant: minus half their squared Mahalanobis
  // distance.
  std::vector<double> scores(const torch::Tensor& profiles) const;

  // As a file, and from one; an Error where it is none.
  void save(const std::filesystem::path& file) const;
  static UsualProfiles load(const std::filesystem::path& file);

 private:
  UsualProfiles() = default;
  torch::Tensor mean_;    // [F]
  torch::Tensor whiten_;  // [F, F]: rows (profile - mean) whiten_ have unit covariance
};

}  // namespace ddaebm
