#pragma once

#include <vector>

#include "ddaebm/config.h"

namespace ddaebm {

// equidistant: t' = eps + (1 - eps) t / T; the authors' code has eps = 1e-3, the paper none.
// recovery: t' = t floor(1000 / (2 (T - 1))) / 999 and t'(T) = 1, used for LSUN.
enum class TimeGrid { equidistant, recovery };

struct ScheduleConfig {
  int64_t steps = 4;
  double beta_min = 0.1;
  double beta_max = 20.0;
  TimeGrid times = TimeGrid::equidistant;
  double time_eps = 1e-3;                 // 0 leaves x_0 clean, and E(x, 0) without a bound
  double beta_limit = 1.0;                // the authors' image code: 0.999
  double posterior_variance_floor = 0.0;  // the authors' image code: 1e-4
  bool forget = false;

  void visit(Fields& f) {
    f("steps", steps, between(1, 1000), "T, the number of denoising steps");
    f("beta_min", beta_min, more_than(0), "the VP process's rate at time 0");
    f("beta_max", beta_max, more_than(0), "its rate at time 1; not less than beta_min");
    f("times", times, {"equidistant", "recovery"}, "where the steps lie in time");
    f("time_eps", time_eps, between(0, 0.5), "time of the noise that x_0 already carries");
    f("beta_limit", beta_limit, between(0, 1), "largest step variance");
    f("posterior_variance_floor", posterior_variance_floor, at_least(0),
      "smallest variance of the posterior's noise");
    f("forget", forget,
      "whether the last step leaves noise alone, as sampling begins with, whatever beta_max is");
  }
};

// The numbers of the diffusion, in float64. Arrays `time` to `sigma_bar` have T + 1 entries, where
// entry 0 is the noise already in "x_0"; the posterior's have T, one for each t of x_t in the pair
// (x_t, x_{t+1}).
struct Schedule {
  // Throws Error where beta_max < beta_min.
  explicit Schedule(const ScheduleConfig& config);

  int64_t steps;
  std::vector<double> time;       // t'
  std::vector<double> beta;       // variance of q(x_t | x_{t-1})
  std::vector<double> a;          // sqrt(1 - beta)
  std::vector<double> sigma;      // sqrt(beta)
  std::vector<double> a_bar;      // product of a: x_t = a_bar x_0 + sigma_bar eps
  std::vector<double> sigma_bar;  // sqrt(1 - a_bar^2)
  // q(x_t | x_{t+1}, x_0) = N(c_x0 x_0 + c_next x_{t+1}, variance)
  std::vector<double> posterior_x0;
  std::vector<double> posterior_next;
  std::vector<double> posterior_variance;
  std::vector<double> posterior_log_variance;  // of the floored variance

  // The paper's lambda, eq. 21, over times t'(0..T): w t'^{log_{1/2}(w_mid / w)}. The pair (x_t,
  // x_{t+1}) uses entry t + 1.
  std::vector<double> importance(double w, double w_mid) const;
};

}  // namespace ddaebm
