// Methods of one energy: maximum likelihood, sliced and denoising score matching, against what is
// known of Gaussians.

#include <cmath>
#include <numbers>

#include <gtest/gtest.h>

#include "ddaebm/data/toy.h"
#include "ddaebm/error.h"
#include "ddaebm/methods/dsm.h"
#include "ddaebm/methods/mle.h"
#include "ddaebm/methods/ssm.h"
#include "ddaebm/train/optimizer.h"

namespace ddaebm {
namespace {

const torch::TensorOptions kDoubles(torch::kDouble);
constexpr int64_t kMany = 200000;

double value(const torch::Tensor& x) { return x.item<double>(); }

// E(x) = -x^T A x / 2.
struct QuadraticEnergy : EnergyNet {
  explicit QuadraticEnergy(const torch::Tensor& matrix) : A(register_parameter("A", matrix)) {}
  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& /*t*/) override {
    return -0.5 * (x.matmul(A) * x).sum(1);
  }
  torch::Tensor A;
};

torch::Tensor precision() { return torch::tensor({{2.0, 0.6}, {0.6, 1.0}}, torch::kDouble); }
// Data of covariance `root()` root()^T.
torch::Tensor root() { return torch::tensor({{0.8, 0.0}, {-0.3, 0.5}}, torch::kDouble); }
torch::Tensor data(int64_t n, Random& random) {
  return random.normal({n, 2}, kDoubles).matmul(root().t());
}

// Steps of Adam on data from `draw`; the mean of the last losses.
template <class Draw>
double train(Method& method, int64_t iterations, double lr, Random& random, const Draw& draw) {
  OptimizerConfig config;
  config.lr = lr;
  config.beta1 = 0.9;
  config.beta2 = 0.999;
  config.schedule = RateSchedule::cosine;
  Optimizer optimizer(method, config);
  double sum = 0;
  const auto progress = torch::zeros({}, kDoubles);
  for (int64_t i = 0; i < iterations; ++i) {
    optimizer.set_iteration(i, iterations);
    const auto loss = method.step(
        draw(), progress, random,
        [&](size_t player, const auto& part, bool last) { optimizer.update(player, part, last); });
    if (i >= iterations - 50) sum += value(loss[0]);
  }
  return sum / 50;
}

// A toy of one method's settings, trained for a short while: its density prefers data to points
// around them, its samples are finite.
void expect_learns(const std::string& name, const std::vector<std::string>& changes) {
  SCOPED_TRACE(name);
  auto settings = method_settings(name);
  auto file = ConfigFile::parse("", "test");
  for (const auto& change : changes) file.set(change);
  Fields fields;
  settings->visit(fields);
  file.fill(fields);
  Random random(torch::kCPU, 3);
  const auto method = settings->build({2}, kDoubles);
  const auto toy = make_toy("8gaussians");
  const auto draw = [&] { return toy->sample(128, random).to(torch::kDouble); };
  train(*method, 150, 3e-3, random, draw);
  method->module().eval();
  const auto x = draw();
  const torch::NoGradGuard no_grad;
  const auto gain =
      method->log_density(x) - method->log_density(x + random.normal(x.sizes(), kDoubles));
  EXPECT_GT(value(gain.mean()), 0.1);
  const auto samples = method->sample(50, random);
  EXPECT_EQ(samples.sizes(), (std::vector<int64_t>{50, 2}));
  EXPECT_TRUE(samples.isfinite().all().item<bool>());
}

TEST(Ssm, LossOfAGaussianIsItsClosedForm) {
  // E[s s^T] = A S A and ds/dx = -A, so the loss is tr(A S A) / 2 - tr A.
  Random random(torch::kCPU, 1);
  const auto x = data(kMany, random);
  const auto S = root().matmul(root().t());
  const auto A = precision();
  const double expected = value(0.5 * A.matmul(S).matmul(A).trace() - A.trace());
  for (const auto slice : {Slice::rademacher, Slice::gaussian}) {
    for (const bool reduced : {false, true}) {
      Ssm method({slice, reduced}, {}, std::make_shared<QuadraticEnergy>(A), 2, kDoubles);
      EXPECT_NEAR(value(method.losses(x, random).mean()), expected, 0.02);
    }
  }
}

TEST(Ssm, IsLeastAtTheDatasPrecision) {
  Random random(torch::kCPU, 1);
  const auto energy = std::make_shared<QuadraticEnergy>(torch::eye(2, kDoubles));
  Ssm method({Slice::rademacher, true}, {}, energy, 2, kDoubles);
  train(method, 500, 0.1, random, [&] { return data(2000, random); });
  const auto truth = root().matmul(root().t()).inverse();
  const auto A = 0.5 * (energy->A + energy->A.t()).detach();
  EXPECT_LT(value((A - truth).abs().max()), 0.15) << A << truth;
}

TEST(Ssm, RefusesAnEnergyWithoutCurvature) {
  const auto settings = method_settings("ssm");
  auto file = ConfigFile::parse("", "test");
  file.set("net.energy_activation=prelu");
  Fields fields;
  settings->visit(fields);
  file.fill(fields);
  EXPECT_THROW(settings->build({2}, torch::kDouble), Error);
}

TEST(Dsm, LossOfAGaussianIsItsClosedForm) {
  // With s = -A y at y = x + sigma eps: (sigma^2 tr(A (S + sigma^2) A) - 2 sigma^2 tr A + D) / 2.
  Random random(torch::kCPU, 1);
  const auto x = data(kMany, random);
  const auto A = precision();
  for (const double sigma : {0.1, 0.7}) {
    const auto S = root().matmul(root().t()) + sigma * sigma * torch::eye(2, kDoubles);
    const double s2 = sigma * sigma;
    const double expected =
        0.5 * value(s2 * A.matmul(S).matmul(A).trace() - 2 * s2 * A.trace() + 2);
    Dsm method({sigma}, {}, std::make_shared<QuadraticEnergy>(A), 2, kDoubles);
    EXPECT_NEAR(value(method.losses(x, random).mean()), expected, 0.02);
  }
}

TEST(Dsm, LearnsThePrecisionOfDataWithNoise) {
  Random random(torch::kCPU, 1);
  const auto energy = std::make_shared<QuadraticEnergy>(torch::eye(2, kDoubles));
  Dsm method({0.5}, {}, energy, 2, kDoubles);
  train(method, 500, 0.1, random, [&] { return data(2000, random); });
  const auto truth = (root().matmul(root().t()) + 0.25 * torch::eye(2, kDoubles)).inverse();
  const auto A = 0.5 * (energy->A + energy->A.t()).detach();
  EXPECT_LT(value((A - truth).abs().max()), 0.15) << A << truth;
}

TEST(Langevin, DrawsFromAGaussianEnergy) {
  Random random(torch::kCPU, 1);
  QuadraticEnergy energy(precision());
  LangevinConfig config;
  config.steps = 200;
  config.step_begin = 0.5;
  config.step_end = 0.02;
  const torch::NoGradGuard no_grad;
  const auto x = sample_energy(energy, 20000, 2, config, kDoubles, random);
  const auto covariance = x.t().matmul(x) / 20000;
  EXPECT_LT(value((covariance - precision().inverse()).abs().max()), 0.05) << covariance;
}

NiceConfig small(int64_t embedding) {
  NiceConfig nice;
  nice.hidden = {16, 16};
  nice.embedding = embedding;
  return nice;
}

TEST(Mle, ReachesTheEntropyOfAGaussian) {
  Random random(torch::kCPU, 1);
  Mle method(Schedule(ScheduleConfig{}), 2, small(0), kDoubles);
  const double nll = train(method, 600, 1e-2, random, [&] { return data(256, random); });
  const double entropy = std::log(2 * std::numbers::pi * std::numbers::e) + std::log(0.8 * 0.5);
  EXPECT_NEAR(nll, entropy, 0.05);

  // And its samples have the data's covariance.
  const torch::NoGradGuard no_grad;
  const auto x = method.sample(20000, random);
  const auto covariance = x.t().matmul(x) / 20000;
  EXPECT_LT(value((covariance - root().matmul(root().t())).abs().max()), 0.06) << covariance;
}

TEST(Mle, WithATimeReachesTheEntropyOfAllDiffusedData) {
  // Data N(mean, I) are N(a_bar mean, I) at time t, which the flow can follow: its scale is one for
  // all times, its shifts are not. A flow that did not know the time would score the mixture.
  Random random(torch::kCPU, 1);
  Mle method(Schedule(ScheduleConfig{}), 2, small(8), kDoubles);
  const auto mean = torch::tensor({3.0, -2.0}, kDoubles);
  const auto draw = [&] { return mean + random.normal({256, 2}, kDoubles); };
  const double nll = train(method, 600, 1e-2, random, draw);
  const double entropy = std::log(2 * std::numbers::pi * std::numbers::e);
  EXPECT_NEAR(nll, entropy, 0.1);
  const torch::NoGradGuard no_grad;
  EXPECT_NEAR(-value(method.log_density(draw()).mean()), entropy, 0.2) << "that of t = 0";
  EXPECT_LT(value((method.sample(2000, random).mean(0) - mean).abs().max()), 0.2);
}

TEST(Mle, NeedsAFlow) {
  const auto settings = method_settings("mle");
  auto file = ConfigFile::parse("", "test");
  file.set("net.energy=mlp");
  Fields fields;
  settings->visit(fields);
  file.fill(fields);
  EXPECT_THROW(settings->build({2}, torch::kDouble), Error);
}

TEST(OneEnergy, EveryMethodLearnsAToy) {
  const std::vector<std::string> mlp = {"net.energy_hidden=[32, 32]"};
  const std::vector<std::string> nice = {"net.energy=nice", "net.nice.hidden=[32, 32]"};
  expect_learns("mle", nice);
  for (const std::string name : {"ssm", "dsm"}) {
    expect_learns(name, mlp);
    expect_learns(name, nice);
  }
}

}  // namespace
}  // namespace ddaebm
