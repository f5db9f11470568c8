#include "ddaebm/train/likelihood.h"

#include <cmath>

namespace ddaebm {

Likelihood estimate_likelihood(Model& model, const torch::Tensor& data, AnnealingPath path,
                               const AisConfig& config) {
  const int64_t first = path == AnnealingPath::times ? model.times() - 1 : 0;
  std::vector<DensityAndGradient> densities;
  for (int64_t t = first; t >= 0; --t) {
    densities.emplace_back(
        [&model, t](const torch::Tensor& x) { return model.log_density_and_gradient(x, t); });
  }
  const auto rows = data.to(torch::kDouble);
  Likelihood out;
  out.normaliser =
      annealed_importance_sampling(densities, model.diffused(rows, first, config.seed), {}, config);
  const auto scores = model.log_density(rows);
  out.mean = scores.mean().item<double>() - out.normaliser.forward.log_z;
  out.error = std::hypot(scores.std().item<double>() / std::sqrt(scores.size(0)),
                         out.normaliser.forward.error);
  const auto listed = [](const torch::Tensor& values) {
    const auto row = values.to(torch::kCPU, torch::kDouble).contiguous();
    return std::vector<double>(row.data_ptr<double>(), row.data_ptr<double>() + row.numel());
  };
  out.energies = {{"observed", listed(scores)},
                  {"expected", listed(model.log_density(out.normaliser.draws))}};
  return out;
}

}  // namespace ddaebm
