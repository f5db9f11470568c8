#pragma once

#include <torch/types.h>

#include "ddaebm/diffusion/schedule.h"

namespace ddaebm {

// Sum over all but the first dimension: [N, ...] -> [N].
torch::Tensor sum_event(const torch::Tensor& x);

// The diffusion at the times t of a batch: every function below is the paper's for the pair
// (x_t, x_{t+1}), row by row. All x are [N, ...].
class Steps {
 public:
  // rows [N, columns of Process's table]; dims: how many dimensions x has.
  Steps(const torch::Tensor& rows, int64_t dims);

  // x_t from x_0.
  torch::Tensor diffuse(const torch::Tensor& x0, const torch::Tensor& eps) const;
  // Of all the noise in x_t, its standard deviation [N].
  torch::Tensor sigma() const;
  // x_{t+1} from x_t.
  torch::Tensor advance(const torch::Tensor& x_t, const torch::Tensor& eps) const;
  // log q(x_{t+1} | x_t) -> [N], and its gradient in x_t.
  torch::Tensor log_q(const torch::Tensor& x_next, const torch::Tensor& x_t) const;
  torch::Tensor grad_log_q(const torch::Tensor& x_next, const torch::Tensor& x_t) const;
  // q(x_t | x_{t+1}, x_0): mean, a sample (without noise at t = 0 unless asked for), log-density.
  torch::Tensor posterior_mean(const torch::Tensor& x0, const torch::Tensor& x_next) const;
  torch::Tensor posterior_sample(const torch::Tensor& x0, const torch::Tensor& x_next,
                                 const torch::Tensor& eps, bool noise_at_t0) const;
  torch::Tensor posterior_log_density(const torch::Tensor& x_t, const torch::Tensor& x0,
                                      const torch::Tensor& x_next) const;
  // log N(x; 0, s_t^2 I), s_t^2 = (a_bar_t s)^2 + sigma_bar_t^2: a Gaussian of standard deviation
  // s, diffused to time t. Up to its constant; and its gradient in x.
  torch::Tensor log_gaussian(const torch::Tensor& x, double s) const;
  torch::Tensor grad_log_gaussian(const torch::Tensor& x, double s) const;

 private:
  torch::Tensor column(int64_t k) const { return columns_.select(0, k); }
  torch::Tensor row(int64_t k) const { return columns_.select(0, k).reshape({-1}); }  // [N]
  torch::Tensor gaussian_variance(double s) const;
  torch::Tensor columns_;  // [columns, N, 1, ...]
};

// The schedule on a device.
class Process {
 public:
  // The posterior's log-density has no smaller variance than the floor.
  Process(const Schedule& schedule, const torch::TensorOptions& options, double floor = 0.0);

  int64_t steps() const { return steps_; }
  // t [N] int64; x of the batch has `dims` dimensions.
  Steps at(const torch::Tensor& t, int64_t dims) const;

 private:
  int64_t steps_;
  torch::Tensor table_;  // [T, columns]
};

}  // namespace ddaebm
