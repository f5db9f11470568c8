// Diffusion recovery likelihood: its levels, its Langevin dynamics, and that what it learns is a
// density.

#include "ddaebm/methods/drl.h"

#include <cmath>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "ddaebm/error.h"
#include "ddaebm/train/optimizer.h"

namespace ddaebm {
namespace {

const torch::TensorOptions kDouble(torch::kDouble);

double value(const torch::Tensor& x) { return x.item<double>(); }

// f(y, t) = -precision_t |y - mean_t|^2 / 2.
struct QuadraticEnergy : EnergyNet {
  QuadraticEnergy(const torch::Tensor& p, const torch::Tensor& m)
      : precision(register_parameter("precision", p)), mean(register_parameter("mean", m)) {}
  torch::Tensor forward(const torch::Tensor& y, const torch::Tensor& t) override {
    return -0.5 * precision.index_select(0, t) *
           (y - mean.index_select(0, t).unsqueeze(1)).square().sum(1);
  }
  torch::Tensor precision, mean;  // [T]
};

TEST(Drl, LevelsAreThoseOfTheFineDiffusion) {
  const RecoveryLevels levels{DrlConfig{}};
  ASSERT_EQ(levels.a_bar.size(), 6U);
  EXPECT_NEAR(levels.sigma_bar[0], 0.01, 1e-12);  // the first fine step has variance 1e-4
  // x_1 after fine steps 1..100, summed as logarithms.
  double log_kept = 0;
  for (int k = 1; k <= 100; ++k) log_kept += std::log1p(-(1e-4 + k / 999.0 * 0.0199));
  EXPECT_NEAR(levels.a_next[0], std::exp(0.5 * log_kept), 1e-12);
  EXPECT_NEAR(levels.sigma_next[0], std::sqrt(1 - std::exp(log_kept)), 1e-12);
  for (size_t t = 0; t < 6; ++t) {
    EXPECT_NEAR(std::pow(levels.a_bar[t], 2) + std::pow(levels.sigma_bar[t], 2), 1, 1e-12);
    EXPECT_NEAR(std::pow(levels.a_next[t], 2) + std::pow(levels.sigma_next[t], 2), 1, 1e-12);
    EXPECT_NEAR(levels.step[t],
                levels.sigma_bar[t] / 0.01 * 2e-4 * std::pow(levels.sigma_next[t], 2), 1e-12);
    EXPECT_NEAR(levels.weight[t], levels.sigma_next[0] / levels.sigma_next[t], 1e-12);
    if (t + 1 < 6) {
      EXPECT_NEAR(levels.a_bar[t + 1], levels.a_bar[t] * levels.a_next[t], 1e-12);
      EXPECT_EQ(levels.y_scale[t], levels.a_next[t]);
      EXPECT_NEAR(levels.tie[t] * std::pow(levels.sigma_next[t], 2), 1, 1e-12);
    }
  }
  EXPECT_EQ(levels.y_scale[5], 1);
  EXPECT_EQ(levels.tie[5], 0);
  EXPECT_LT(levels.a_bar[5] * levels.a_next[5], 0.01);  // x_T is noise
}

// With f / s^2 a Gaussian of precision p, the chain's target is one of precision P = p + tie, and
// with steps of s^2 what it tends to has variance 1 / (P (1 - s^2 P / 4)).
TEST(Drl, LangevinDynamicsTendsToEnergyPlusQuadraticTerm) {
  DrlConfig config;
  config.levels = 2;
  config.b_square = 0.5;
  config.langevin_steps = 60;
  const RecoveryLevels levels(config);
  const double mean = 0.7;
  // The same energy at both levels, in multiples of 1 / s^2.
  const double precision = 1.5;
  for (const int64_t t : {0, 1}) {
    const auto i = static_cast<size_t>(t);
    if (t == 1) config.b_square = 0.5 * levels.step[0] / levels.step[1];
    const RecoveryLevels used(config);
    const double s2 = used.step[i];
    auto net = std::make_shared<QuadraticEnergy>(torch::full({2}, precision * s2, kDouble),
                                                 torch::full({2}, mean, kDouble));
    Drl method(config, net, {2}, kDouble);
    Random random(torch::kCPU, 3);
    const int64_t n = 20000;
    const double x_next = -1.1;
    const auto y = method.langevin(torch::full({n, 2}, x_next, kDouble),
                                   torch::full({n}, t, torch::kLong), random);
    const double total = precision + used.tie[i];
    const double wanted_mean = (precision * mean + used.tie[i] * x_next) / total;
    const double shrink = std::pow(1 - 0.5 * s2 * total, 60);
    EXPECT_NEAR(value(y.mean()), wanted_mean + shrink * (x_next - wanted_mean), 0.01) << t;
    const double stationary = 1 / (total * (1 - 0.25 * s2 * total));
    EXPECT_NEAR(value(y.var()), stationary * (1 - shrink * shrink), 0.02 * stationary) << t;
    EXPECT_FALSE(y.requires_grad());
  }
}

// Where the chain has time to settle, f / s^2 is the log-density of x_0, the data with a little
// noise, but for what steps of finite size add to the chain's variance.
TEST(Drl, ScaledEnergyIsTheLogDensity) {
  DrlConfig config;
  config.levels = 3;
  config.beta_start = 0.005;
  config.b_square = 0.01;
  config.langevin_steps = 60;
  const RecoveryLevels levels(config);
  auto net = std::make_shared<QuadraticEnergy>(2.0 * torch::tensor(levels.step, kDouble),
                                               torch::zeros({3}, kDouble));
  Drl method(config, net, {2}, kDouble);
  OptimizerConfig adam;
  adam.lr = 0.02;
  adam.schedule = RateSchedule::cosine;
  adam.lr_end = 0.01;
  adam.beta1 = 0.5;
  Optimizer optimizer(method, adam);
  Random random(torch::kCPU, 4);
  const double mean = 0.4;
  const double deviation = 0.6;
  constexpr int64_t kSteps = 200;
  for (int64_t i = 0; i < kSteps; ++i) {
    optimizer.set_iteration(i, kSteps);
    method.step(mean + deviation * random.normal({500, 2}, kDouble), torch::zeros({}, kDouble),
                random, [&](size_t player, const torch::Tensor& loss, bool last) {
                  optimizer.update(player, loss, last);
                });
  }
  const auto x = random.normal({50, 2}, kDouble);
  const auto found = method.log_density(x);
  const double variance =
      std::pow(levels.a_bar[0] * deviation, 2) + std::pow(levels.sigma_bar[0], 2);
  const auto truth = (x - levels.a_bar[0] * mean).square().sum(1) / (-2 * variance);
  const auto centred = [](const torch::Tensor& e) { return e - e.mean(); };
  const auto slope = (centred(found) * centred(truth)).sum() / centred(truth).square().sum();
  const double precision = 1 / (std::pow(levels.y_scale[0], 2) * variance) + levels.tie[0];
  EXPECT_NEAR(value(slope), 1 / (1 - 0.25 * levels.step[0] * precision), 0.05);
  EXPECT_LE(value((centred(found) - centred(truth)).abs().mean()),
            0.1 * value(centred(truth).abs().mean()));
}

TEST(Drl, LossWeighsLevelsAndComparesYWithTheChain) {
  DrlConfig config;
  config.langevin_steps = 2;
  auto net = std::make_shared<QuadraticEnergy>(torch::linspace(0.1, 0.6, 6, kDouble),
                                               torch::linspace(-1, 1, 6, kDouble));
  Drl method(config, net, {2}, kDouble);
  Random random(torch::kCPU, 5);
  const auto x0 = random.normal({30, 2}, kDouble);
  random.restart(Random::kTraining, 1);
  torch::Tensor given;
  method.step(x0, torch::zeros({}, kDouble), random,
              [&](size_t, const torch::Tensor& loss, bool last) {
                EXPECT_TRUE(last);
                given = loss;
              });
  // The same draws again.
  random.restart(Random::kTraining, 1);
  const RecoveryLevels levels(config);
  const auto t = random.integers(6, {30});
  const auto of = [&](const std::vector<double>& column) {
    return torch::tensor(column, kDouble).index_select(0, t).unsqueeze(1);
  };
  const auto x_t = of(levels.a_bar) * x0 + of(levels.sigma_bar) * random.normal({30, 2}, kDouble);
  const auto x_next =
      of(levels.a_next) * x_t + of(levels.sigma_next) * random.normal({30, 2}, kDouble);
  const auto y = method.langevin(x_next, t, random);
  const auto difference = net->forward(y, t) - net->forward(of(levels.y_scale) * x_t, t);
  EXPECT_NEAR(value(given), value((of(levels.weight).squeeze(1) * difference).mean()), 1e-12);
}

TEST(Drl, LearnsWhereDataLie) {
  Random random(torch::kCPU, 6);
  DrlConfig config;
  config.langevin_steps = 15;
  MlpConfig net;
  net.trunk = {64, 64};
  Drl method(config, make_vector_networks(2, config.levels, net).energy, {2}, kDouble);
  OptimizerConfig adam;
  adam.lr = 1e-3;
  adam.beta1 = 0.9;
  adam.beta2 = 0.999;
  Optimizer optimizer(method, adam);
  const auto centre = torch::tensor({0.8, -0.5}, kDouble);
  const auto data = [&] { return centre + 0.1 * random.normal({100, 2}, kDouble); };
  constexpr int64_t kSteps = 300;
  for (int64_t i = 0; i < kSteps; ++i) {
    optimizer.set_iteration(i, kSteps);
    const auto losses = method.step(data(), torch::zeros({}, kDouble), random,
                                    [&](size_t player, const torch::Tensor& loss, bool last) {
                                      optimizer.update(player, loss, last);
                                    });
    ASSERT_TRUE(losses.isfinite().all().item<bool>()) << i;
  }
  const auto distance = [&](const torch::Tensor& x) {
    return value((x - centre).norm(2, 1).mean());
  };
  EXPECT_LT(distance(method.sample(1000, random)), 0.5);
  EXPECT_GT(distance(random.normal({1000, 2}, kDouble)), 1.2);
  EXPECT_GT(value(method.log_density(data()).mean()),
            value(method.log_density(3 * random.normal({100, 2}, kDouble)).mean()));
}

TEST(Drl, RefusesImages) {
  try {
    method_settings("drl")->build({3, 32, 32}, kDouble);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("[3, 32, 32]"), std::string::npos);
  }
}

}  // namespace
}  // namespace ddaebm
