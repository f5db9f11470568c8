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

}  // namespace ddaebm
