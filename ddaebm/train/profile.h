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

// What is usual: where the profiles of data that are like the model's own lie.
class UsualProfiles {
 public:
  explicit UsualProfiles(const torch::Tensor& profiles);
  // How usual profiles [N, F] are -> [N]: minus the logarithm of the distance of the k-th nearest
  // that was learnt, where those have unit covariance. What lies among them need not look like a
  // Gaussian, and a single stray one among them does not count.
  std::vector<double> scores(const torch::Tensor& profiles) const;

  // As a file, and from one; an Error where it is none.
  void save(const std::filesystem::path& file) const;
  static UsualProfiles load(const std::filesystem::path& file);

 private:
  UsualProfiles() = default;
  torch::Tensor mean_;    // [F]
  torch::Tensor whiten_;  // [F, D]: rows (profile - mean) whiten_ have unit covariance
  torch::Tensor learnt_;  // [M, D]: such rows, rounded to the float32 that a file keeps
};

}  // namespace ddaebm
