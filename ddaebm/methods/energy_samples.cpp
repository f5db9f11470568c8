#include "ddaebm/methods/energy_samples.h"

#include <algorithm>
#include <cmath>

#include "ddaebm/nets/plain_networks.h"

namespace ddaebm {

torch::Tensor sample_energy(EnergyNet& energy, int64_t n, int64_t dimension,
                            const LangevinConfig& config, const torch::TensorOptions& options,
                            Random& random) {
  auto x = random.normal({n, dimension}, options);
  if (const auto* nice = dynamic_cast<NiceEnergy*>(&energy)) {
    const torch::NoGradGuard no_grad;
    return nice->flow->inverse(x);
  }
  const torch::AutoGradMode with_gradients(true);
  x = x * config.start_std;
  const double ratio = config.step_end / config.step_begin;
  const auto last = static_cast<double>(std::max<int64_t>(1, config.steps - 1));
  for (int64_t k = 0; k < config.steps; ++k) {
    const double h = config.step_begin * std::pow(ratio, static_cast<double>(k) / last);
    const auto slope = energy.value_and_gradient(x, {}).gradient.detach();
    x = x + 0.5 * h * slope + std::sqrt(h) * random.normal({n, dimension}, options);
  }
  return x;
}

}  // namespace ddaebm
