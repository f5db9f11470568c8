#pragma once

#include <torch/types.h>

// Sums along each row of a batch that losses are made of, [N, ...] -> [N]. On a GPU each is one
// kernel, and so is its gradient; elsewhere, and for second derivatives, the formula.
namespace ddaebm::ops {

// The sum of weight (scale x - target)^2 + added over a row; has a gradient in x. What is undefined
// is one, as scale and weight, or zero.
struct OfRow {
  torch::Tensor scale, weight, added;  // [N]
};
torch::Tensor weighted_squares(const torch::Tensor& x, const torch::Tensor& target = {},
                               const OfRow& row = {});
// -log N(z; mean, exp(log_variance) + 1e-6) up to constants, half the sum of
// log_variance + (z - mean)^2 / (exp(log_variance) + 1e-6).
torch::Tensor gaussian_nll(const torch::Tensor& z, const torch::Tensor& mean,
                           const torch::Tensor& log_variance);
// KL(N(mean, exp(log_variance)) || N(0, 1)), half the sum of mean^2 + exp(log_variance) -
// log_variance - 1.
torch::Tensor gaussian_kl(const torch::Tensor& mean, const torch::Tensor& log_variance);

// The same by their formulas.
namespace reference {
torch::Tensor weighted_squares(const torch::Tensor& x, const torch::Tensor& target = {},
                               const OfRow& row = {});
torch::Tensor gaussian_nll(const torch::Tensor& z, const torch::Tensor& mean,
                           const torch::Tensor& log_variance);
torch::Tensor gaussian_kl(const torch::Tensor& mean, const torch::Tensor& log_variance);
}  // namespace reference

}  // namespace ddaebm::ops
