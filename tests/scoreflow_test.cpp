#include "ddaebm/methods/scoreflow.h"

#include <cmath>
#include <numbers>

#include <gtest/gtest.h>

#include "ddaebm/data/toy.h"
#include "ddaebm/train/optimizer.h"

namespace ddaebm {
namespace {

const torch::TensorOptions kDoubles(torch::kDouble);

double value(const torch::Tensor& x) { return x.item<double>(); }

// The exact energy of data N(0, s^2): E / (1 - m) is the log-density of x_t, whose variance is
// m s^2 + (1 - m)^2.
struct GaussianEnergy : EnergyNet {
  explicit GaussianEnergy(double deviation) : s(deviation) {}
  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& t) override {
    const auto m = (-SubVp{}.integral(t)).exp();
    return -0.5 * (1 - m) * x.square().sum(1) / (m * s * s + (1 - m).square());
  }
  double s;
};

ScoreFlow exact(int64_t dimension, double s, int64_t steps = 60, bool importance = true) {
  ScoreFlowConfig config;
  config.importance = importance;
  config.ode_steps = steps;
  return {SubVp{}, config, std::make_shared<GaussianEnergy>(s), dimension, kDoubles};
}

double log_gaussian(const torch::Tensor& x, double s) {
  const auto d = static_cast<double>(x.size(0));
  return -0.5 * value(x.square().sum()) / (s * s) -
         0.5 * d * std::log(2 * std::numbers::pi * s * s);
}

TEST(ScoreFlow, DensityOfAKnownScoreIsExact) {
  // In ten dimensions Hutchinson's estimate stands for the trace; of a matrix that is a multiple
  // of one it is exact.
  for (const int64_t dimension : {2, 3, 10}) {
    for (const double s : {0.3, 1.0, 1.7}) {
      auto method = exact(dimension, s);
      Random random(torch::kCPU, 1);
      const torch::NoGradGuard no_grad;
      const auto x = s * random.normal({5, dimension}, kDoubles);
      const auto log_p = method.log_density(x);
      for (int64_t i = 0; i < 5; ++i) {
        EXPECT_NEAR(value(log_p[i]), log_gaussian(x[i], s), 2e-3 * static_cast<double>(dimension));
      }
    }
  }
}

TEST(ScoreFlow, TwelveStepsAreNearlyAsGood) {
  auto method = exact(2, 0.1, 12);
  const auto x = torch::tensor({{0.05, -0.1}, {0.2, 0.0}}, kDoubles);
  const auto log_p = method.log_density(x);
  for (int64_t i = 0; i < 2; ++i) EXPECT_NEAR(value(log_p[i]), log_gaussian(x[i], 0.1), 0.05);
}

TEST(ScoreFlow, SamplesOfAKnownScoreHaveItsDeviation) {
  Random random(torch::kCPU, 1);
  const torch::NoGradGuard no_grad;
  const auto x = exact(2, 0.3).sample(20000, random);
  EXPECT_NEAR(value(x.std()), 0.3, 0.01);
}

TEST(ScoreFlow, ImportanceMovesVarianceNotTheLoss) {
  // Against the integral itself: with the exact score of N(0, s^2) the error left of the noise is
  // D m s^2 / (m s^2 + (1 - m)^2), weighted by b coth(B / 2) / 2.
  constexpr double kStd = 0.5;
  const SubVp sde;
  double expected = 0;
  constexpr int64_t kCells = 200000;
  const double low = std::log(sde.time_eps);
  for (int64_t i = 0; i < kCells; ++i) {
    const double t = std::exp(low * (1 - (static_cast<double>(i) + 0.5) / kCells));
    const double m = std::exp(-sde.integral(t));
    const double left = m * kStd * kStd / (m * kStd * kStd + (1 - m) * (1 - m));
    expected += sde.rate(t) / std::tanh(sde.integral(t) / 2) * left * t * -low / kCells;
  }
  Random random(torch::kCPU, 1);
  const auto x = kStd * random.normal({100000, 2}, kDoubles);
  const auto losses = exact(2, kStd).losses(x, random).detach();
  EXPECT_NEAR(value(losses.mean()), expected, 0.02 * expected);
  const auto uniform = exact(2, kStd, 60, false).losses(x, random).detach();
  EXPECT_NEAR(value(uniform.mean()), expected, 5 * value(uniform.std()) / std::sqrt(1e5));
  EXPECT_GT(value(uniform.std()), 10 * value(losses.std()));
}

TEST(ScoreFlow, LearnsAToy) {
  Random random(torch::kCPU, 3);
  ScoreNetConfig net;
  net.trunk = {48, 48};
  ScoreFlow method(SubVp{}, {}, make_score_energy(2, net), 2, kDoubles);
  OptimizerConfig config;
  config.lr = 5e-3;
  config.beta1 = 0.9;
  config.beta2 = 0.999;
  Optimizer optimizer(method, config);
  const auto toy = make_toy("8gaussians");
  for (int64_t i = 0; i < 300; ++i) {
    optimizer.set_iteration(i, 300);
    method.step(
        toy->sample(128, random).to(torch::kDouble), torch::zeros({}, kDoubles), random,
        [&](size_t player, const auto& loss, bool last) { optimizer.update(player, loss, last); });
  }
  const torch::NoGradGuard no_grad;
  const auto x = toy->sample(200, random).to(torch::kDouble);
  const auto gain =
      method.log_density(x) - method.log_density(x + random.normal(x.sizes(), kDoubles));
  EXPECT_GT(value(gain.mean()), 0.1);
  EXPECT_TRUE(method.sample(50, random).isfinite().all().item<bool>());
}

}  // namespace
}  // namespace ddaebm
