#include "ddaebm/diffusion/sampler.h"

namespace ddaebm {
namespace {

struct Step {
  torch::Tensor x, t;
};

Step one_step(const Process& process, const Denoiser& denoise, const torch::Tensor& x_next,
              int64_t k, bool noise_at_t0, Random& random) {
  const auto t = torch::full({x_next.size(0)}, k, x_next.options().dtype(torch::kLong));
  const auto eps = random.normal(x_next.sizes(), x_next.options());
  const auto guess = denoise(x_next, t);
  return {process.at(t, x_next.dim()).posterior_sample(guess, x_next, eps, noise_at_t0), t};
}

}  // namespace

std::vector<torch::Tensor> sample_path(const Process& process, const Denoiser& denoise,
                                       torch::Tensor x_T, bool noise_at_t0, Random& random) {
  std::vector<torch::Tensor> path{std::move(x_T)};
  for (int64_t k = process.steps() - 1; k >= 0; --k) {
    path.push_back(one_step(process, denoise, path.back(), k, noise_at_t0, random).x);
  }
  return path;
}

std::vector<torch::Tensor> weighed_path(const Process& process, const Denoiser& denoise,
                                        torch::Tensor x_T, bool noise_at_t0, Random& random,
                                        const LogRatio& ratio, int64_t n) {
  const int64_t points = x_T.size(0);
  std::vector<torch::Tensor> path{std::move(x_T)};
  for (int64_t k = process.steps() - 1; k >= 0; --k) {
    const Step step = one_step(process, denoise, path.back(), k, noise_at_t0, random);
    path.push_back(step.x);
    const auto rows = choose_rows(ratio(step.x, step.t), k > 0 ? points : n, random);
    for (auto& x : path) x = x.index_select(0, rows);
  }
  return path;
}

torch::Tensor choose_rows(const torch::Tensor& log_weight, int64_t n, Random& random) {
  const auto until = log_weight.to(torch::kDouble).softmax(0).cumsum(0);
  const auto comb = torch::arange(n, until.options());
  const auto at = (comb + random.uniform({1}, until.options())) / static_cast<double>(n);
  // The last sum may fall short of 1 by rounding.
  return torch::searchsorted(until, at).clamp_max(log_weight.size(0) - 1);
}

}  // namespace ddaebm
