#include "ddaebm/diffusion/schedule.h"

#include <algorithm>
#include <cmath>

#include "ddaebm/error.h"

namespace ddaebm {
namespace {

std::vector<double> times(const ScheduleConfig& config) {
  const int64_t T = config.steps;
  std::vector<double> t(static_cast<size_t>(T) + 1);
  for (int64_t k = 0; k <= T; ++k) {
    auto& out = t[static_cast<size_t>(k)];
    if (config.times == TimeGrid::equidistant) {
      const double eps = config.time_eps;
      out = static_cast<double>(k) / static_cast<double>(T) * (1.0 - eps) + eps;
    } else {
      const int64_t stride = T > 1 ? 1000 / (2 * (T - 1)) : 0;
      out = k == T ? 1.0 : static_cast<double>(k * stride) / 999.0;
    }
  }
  return t;
}

}  // namespace

Schedule::Schedule(const ScheduleConfig& config) : steps(config.steps), time(times(config)) {
  if (config.beta_max < config.beta_min) {
    fail("diffusion.beta_max is {}, it must not be less than diffusion.beta_min, {}",
         config.beta_max, config.beta_min);
  }
  // log(1 - sigma^2(t')) of the VP process
  const auto log_alpha_bar = [&](double t) {
    return -config.beta_min * t - 0.5 * (config.beta_max - config.beta_min) * t * t;
  };
  double product = 1.0;
  for (size_t k = 0; k < time.size(); ++k) {
    const double before = k == 0 ? 0.0 : log_alpha_bar(time[k - 1]);
    const bool forgets = config.forget && k + 1 == time.size();
    beta.push_back(
        forgets ? 1.0 : std::min(-std::expm1(log_alpha_bar(time[k]) - before), config.beta_limit));
    if (k > 0 && !(beta[k] > 0)) {
      fail("diffusion: step {} of {} adds no noise; lower diffusion.steps, or raise beta_min{}", k,
           steps, config.beta_limit > 0 ? "" : " and beta_limit");
    }
    a.push_back(std::sqrt(1.0 - beta[k]));
    sigma.push_back(std::sqrt(beta[k]));
    product *= a[k];
    a_bar.push_back(product);
    sigma_bar.push_back(std::sqrt(1.0 - product * product));
  }
  for (size_t t = 0; t + 1 < time.size(); ++t) {
    const double kept = a_bar[t] * a_bar[t];
    const double noise_next = 1.0 - a_bar[t + 1] * a_bar[t + 1];
    const double b = beta[t + 1];
    posterior_x0.push_back(b * a_bar[t] / noise_next);
    posterior_next.push_back((1.0 - kept) * a[t + 1] / noise_next);
    posterior_variance.push_back(b * (1.0 - kept) / noise_next);
    posterior_log_variance.push_back(
        std::log(std::max(posterior_variance[t], config.posterior_variance_floor)));
  }
}

std::vector<double> Schedule::importance(double w, double w_mid) const {
  const double power = std::log(w_mid / w) / std::log(0.5);
  std::vector<double> lambda;
  for (const double t : time) lambda.push_back(w * std::pow(t, power));
  return lambda;
}

}  // namespace ddaebm
