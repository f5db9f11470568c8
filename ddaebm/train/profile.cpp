#include "ddaebm/train/profile.h"

#include <algorithm>

#include "ddaebm/error.h"
#include "ddaebm/io/histogram.h"

namespace ddaebm {

torch::Tensor energy_profiles(Model& model, const torch::Tensor& data, uint64_t seed) {
  constexpr int64_t kAtOnce = 1000;  // gradients are as large as the data
  auto out = torch::empty({data.size(0), 2 * model.times()}, torch::kDouble);
  for (int64_t from = 0; from < data.size(0); from += kAtOnce) {
    const int64_t to = std::min(from + kAtOnce, data.size(0));
    const auto rows = data.slice(0, from, to);
    for (int64_t t = 0; t < model.times(); ++t) {
      const auto noised = model.diffused(rows, t, seed + static_cast<uint64_t>(from));
      const auto at = model.log_density_and_gradient(noised, t);
      out.slice(0, from, to).select(1, 2 * t).copy_(at.value);
      const auto steepness = at.gradient.flatten(1).norm(2, 1).clamp_min(1e-30).log();
      out.slice(0, from, to).select(1, 2 * t + 1).copy_(steepness);
    }
    if (model.progress) model.progress(to, data.size(0));
  }
  return out;
}

UsualProfiles::UsualProfiles(const torch::Tensor& profiles) {
  const int64_t rows = profiles.size(0);
  const int64_t wanted = 10 * profiles.size(1);
  if (rows < wanted) {
    fail("{} data to learn usual energies from, {} at least are needed", rows, wanted);
  }
  if (!torch::isfinite(profiles).all().item<bool>()) {
    fail("energies of data to learn from, or their gradients, are not finite");
  }
  mean_ = profiles.mean(0);
  const auto centred = profiles - mean_;
  const auto covariance = centred.t().mm(centred) / static_cast<double>(rows - 1);
  // Columns that follow from others have no spread of their own, up to rounding; a datum off by
  // more than that is still unusual.
  const auto spread = torch::max(covariance.diagonal().sqrt(), 1e-9 * (1 + mean_.abs()));
  const auto correlation = covariance / spread.outer(spread);
  const auto [variances, directions] = torch::linalg_eigh(correlation, "L");
  whiten_ = directions / variances.clamp_min(1e-6).sqrt() / spread.unsqueeze(1);
}

std::vector<double> UsualProfiles::scores(const torch::Tensor& profiles) const {
  return numbers_of(-0.5 * (profiles - mean_).mm(whiten_).square().sum(1));
}

}  // namespace ddaebm
