#include "ddaebm/diffusion/sampler.h"

namespace ddaebm {

std::vector<torch::Tensor> sample_path(const Process& process, const Denoiser& denoise,
                                       torch::Tensor x_T, bool noise_at_t0, Random& random) {
  std::vector<torch::Tensor> path{std::move(x_T)};
  for (int64_t k = process.steps() - 1; k >= 0; --k) {
    const auto& x_next = path.back();
    const auto t = torch::full({x_next.size(0)}, k, x_next.options().dtype(torch::kLong));
    const auto eps = random.normal(x_next.sizes(), x_next.options());
    path.push_back(
        process.at(t, x_next.dim()).posterior_sample(denoise(x_next, t), x_next, eps, noise_at_t0));
  }
  return path;
}

}  // namespace ddaebm
