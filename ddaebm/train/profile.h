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

// What is usual, learnt from the profiles of data that are like the model's own: how they spread as
// a whole, and where each of them lies.
class UsualProfiles {
 public:
  explicit UsualProfiles(const torch::Tensor& profiles);
  // How usual profiles [N, F] are -> [N]: minus the logarithms of two distances, of the mean and of
  // the second nearest profile that was learnt, both where those have unit covariance. The second
  // tells what a Gaussian cannot; a single stray datum among those learnt does not count.
  std::vector<double> scores(const torch::Tensor& profiles) const;

  // As a file, and from one; an Error where it is none.
  void save(const std::filesystem::path& file) const;
  static UsualProfiles load(const std::filesystem::path& file);

 private:
  UsualProfiles() = default;
  torch::Tensor mean_;    // [F]
  torch::Tensor whiten_;  // [F, F]: rows (profile - mean) whiten_ have unit covariance
  // Those learnt, float32 [M, D]: the D directions in which they spread most.
  torch::Tensor learnt_;
};

}  // namespace ddaebm
