#pragma once

#include <functional>
#include <vector>

#include "ddaebm/diffusion/process.h"
#include "ddaebm/random.h"

namespace ddaebm {

// A guess of x_0 from x_{t+1}: (x_next [N, ...], t [N]) -> [N, ...].
using Denoiser = std::function<torch::Tensor(const torch::Tensor& x_next, const torch::Tensor& t)>;

// Walks from x_T to x_0 in T steps: at each, x_t ~ q(x_t | x_{t+1}, x_0 = denoise(x_{t+1}, t)).
// Returns x_T, x_{T-1}, ..., x_0.
std::vector<torch::Tensor> sample_path(const Process& process, const Denoiser& denoise,
                                       torch::Tensor x_T, bool noise_at_t0, Random& random);

// By how much points x_t are likelier than the step that proposed them makes them: the logarithm of
// the densities' ratio, [N].
using LogRatio = std::function<torch::Tensor(const torch::Tensor& x_t, const torch::Tensor& t)>;

// The same as sequential importance resampling: after each step as many points are drawn again by
// their ratio, so that they are x_t's before the next step starts from them, and after the last
// step n of them. Returns the paths of these n.
std::vector<torch::Tensor> weighed_path(const Process& process, const Denoiser& denoise,
                                        torch::Tensor x_T, bool noise_at_t0, Random& random,
                                        const LogRatio& ratio, int64_t n);

// n of the rows, [n], each as often as its weight says, rounded up or down (systematic resampling).
torch::Tensor choose_rows(const torch::Tensor& log_weight, int64_t n, Random& random);

}  // namespace ddaebm
