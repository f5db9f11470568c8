#include "ddaebm/diffusion/process.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "ddaebm/ops/row_sums.h"

namespace ddaebm {
namespace {

enum Column : int64_t {
  kABar,
  kSigmaBar,
  kANext,
  kSigmaNext,
  // Of log q(x_{t+1} | x_t), for each dimension: the weight of squares, what is added to them, and
  // the parts of x_{t+1} and x_t in its gradient.
  kLogQWeight,
  kLogQAdded,
  kLogQNext,
  kLogQNow,
  kPosteriorX0,
  kPosteriorNext,
  kPosteriorStd,
  kPosteriorStdSilentAt0,  // the same, zero at t = 0
  kPosteriorWeight,        // of squares in its log-density, for each dimension
  kPosteriorAdded,
  kColumns
};

const double kHalfLogTwoPi = 0.5 * std::log(2.0 * std::numbers::pi);

}  // namespace

torch::Tensor sum_event(const torch::Tensor& x) { return x.flatten(1).sum(1); }

Process::Process(const Schedule& s, const torch::TensorOptions& options, double floor)
    : steps_(s.steps) {
  table_ = torch::empty({steps_, kColumns}, torch::kDouble);
  auto cell = table_.accessor<double, 2>();
  for (int64_t t = 0; t < steps_; ++t) {
    const auto i = static_cast<size_t>(t);
    const double deviation = std::exp(0.5 * s.posterior_log_variance[i]);
    cell[t][kABar] = s.a_bar[i];
    cell[t][kSigmaBar] = s.sigma_bar[i];
    cell[t][kANext] = s.a[i + 1];
    cell[t][kSigmaNext] = s.sigma[i + 1];
    const double precision = 1.0 / (s.sigma[i + 1] * s.sigma[i + 1]);
    cell[t][kLogQWeight] = -0.5 * precision;
    cell[t][kLogQAdded] = -std::log(s.sigma[i + 1]) - kHalfLogTwoPi;
    cell[t][kLogQNext] = s.a[i + 1] * precision;
    cell[t][kLogQNow] = -s.a[i + 1] * s.a[i + 1] * precision;
    cell[t][kPosteriorX0] = s.posterior_x0[i];
    cell[t][kPosteriorNext] = s.posterior_next[i];
    cell[t][kPosteriorStd] = deviation;
    cell[t][kPosteriorStdSilentAt0] = t == 0 ? 0.0 : deviation;
    const double variance = std::max(deviation * deviation, floor);
    cell[t][kPosteriorWeight] = -0.5 / variance;
    cell[t][kPosteriorAdded] = -0.5 * std::log(variance) - kHalfLogTwoPi;
  }
  table_ = table_.to(options);
}

Steps Process::at(const torch::Tensor& t, int64_t dims) const {
  return {table_.index_select(0, t), dims};
}

Steps::Steps(const torch::Tensor& rows, int64_t dims) {
  std::vector<int64_t> shape(static_cast<size_t>(dims) + 1, 1);
  shape[0] = kColumns;
  shape[1] = rows.size(0);
  columns_ = rows.t().reshape(shape);
}

torch::Tensor Steps::diffuse(const torch::Tensor& x0, const torch::Tensor& eps) const {
  return torch::addcmul(column(kABar) * x0, column(kSigmaBar), eps);
}

torch::Tensor Steps::sigma() const { return row(kSigmaBar); }

torch::Tensor Steps::advance(const torch::Tensor& x_t, const torch::Tensor& eps) const {
  return torch::addcmul(column(kANext) * x_t, column(kSigmaNext), eps);
}

torch::Tensor Steps::log_q(const torch::Tensor& x_next, const torch::Tensor& x_t) const {
  return ops::weighted_squares(x_t, x_next, {row(kANext), row(kLogQWeight), row(kLogQAdded)});
}

torch::Tensor Steps::grad_log_q(const torch::Tensor& x_next, const torch::Tensor& x_t) const {
  return torch::addcmul(column(kLogQNext) * x_next, column(kLogQNow), x_t);
}

torch::Tensor Steps::posterior_mean(const torch::Tensor& x0, const torch::Tensor& x_next) const {
  return torch::addcmul(column(kPosteriorX0) * x0, column(kPosteriorNext), x_next);
}

torch::Tensor Steps::posterior_sample(const torch::Tensor& x0, const torch::Tensor& x_next,
                                      const torch::Tensor& eps, bool noise_at_t0) const {
  return torch::addcmul(posterior_mean(x0, x_next),
                        column(noise_at_t0 ? kPosteriorStd : kPosteriorStdSilentAt0), eps);
}

torch::Tensor Steps::posterior_log_density(const torch::Tensor& x_t, const torch::Tensor& x0,
                                           const torch::Tensor& x_next) const {
  const auto left = torch::addcmul(x_t, column(kPosteriorNext), x_next, -1.0);
  return ops::weighted_squares(x0, left,
                               {row(kPosteriorX0), row(kPosteriorWeight), row(kPosteriorAdded)});
}

torch::Tensor Steps::gaussian_variance(double s) const {
  return (column(kABar) * s).square() + column(kSigmaBar).square();
}

torch::Tensor Steps::log_gaussian(const torch::Tensor& x, double s) const {
  return sum_event(x.square() / (-2.0 * gaussian_variance(s)));
}

torch::Tensor Steps::grad_log_gaussian(const torch::Tensor& x, double s) const {
  return -x / gaussian_variance(s);
}

}  // namespace ddaebm
