// Glow, and the contrast of an energy with it.

#include "ddaebm/methods/fce.h"

#include <cmath>
#include <numbers>

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "ddaebm/data/toy.h"
#include "ddaebm/error.h"
#include "ddaebm/nets/plain_networks.h"
#include "ddaebm/train/optimizer.h"

namespace ddaebm {
namespace {

const torch::TensorOptions kDoubles(torch::kDouble);

double value(const torch::Tensor& x) { return x.item<double>(); }

// With weights larger than those it begins with.
Glow stirred(int64_t dimension) {
  torch::manual_seed(3);
  Glow glow(dimension, GlowConfig{.couplings = 5, .hidden = {16, 16}});
  const torch::NoGradGuard no_grad;
  for (auto& parameter : glow->parameters()) parameter.add_(0.2 * torch::randn_like(parameter));
  return glow;
}

TEST(Glow, InverseUndoesItInAnyDimension) {
  for (const int64_t dimension : {2, 3, 6, 7}) {
    auto glow = stirred(dimension);
    const auto x = torch::randn({20, dimension}, kDoubles);
    const auto y = glow->forward(x);
    const auto back = glow->inverse(y.to);
    EXPECT_LT(value((back.to - x).abs().max()), 1e-9);
    EXPECT_LT(value((back.log_det + y.log_det).abs().max()), 1e-9);
    EXPECT_GT(value((y.to - x).abs().amax(0).min()), 1e-3) << "every coordinate moves";
    const auto drawn = glow->draw(y.to);
    EXPECT_LT(value((drawn.log_density - glow->log_density(x)).abs().max()), 1e-9);
  }
}

TEST(Glow, LogDeterminantIsAutogradsJacobian) {
  for (const int64_t dimension : {2, 5}) {
    auto glow = stirred(dimension);
    const auto x = torch::randn({6, dimension}, kDoubles).requires_grad_();
    const auto y = glow->forward(x);
    std::vector<torch::Tensor> rows;
    for (int64_t d = 0; d < dimension; ++d) {
      rows.push_back(torch::autograd::grad({y.to.select(1, d).sum()}, {x}, {}, true)[0]);
    }
    const auto expected = torch::stack(rows, 1).det().abs().log();
    EXPECT_LT(value((y.log_det - expected).abs().max()), 1e-9);
  }
}

TEST(Glow, DensitySumsToOne) {
  auto glow = stirred(2);
  constexpr double kReach = 25.0;
  constexpr int64_t kCells = 600;
  const auto axis = torch::linspace(-kReach, kReach, kCells, kDoubles);
  const auto grid = torch::stack({axis.repeat_interleave(kCells), axis.repeat({kCells})}, 1);
  const double cell = std::pow(2 * kReach / (kCells - 1), 2);
  const torch::NoGradGuard no_grad;
  EXPECT_NEAR(value(glow->log_density(grid).exp().sum()) * cell, 1.0, 1e-3);
}

TEST(Glow, OneColumnIsRefused) { EXPECT_THROW(Glow(1, GlowConfig{}), Error); }

// The flow's own density as an energy.
struct FlowEnergy : EnergyNet {
  explicit FlowEnergy(Glow glow) : flow(std::move(glow)) {}
  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& /*t*/) override {
    return flow->log_density(x);
  }
  Glow flow;
};

TEST(Fce, ValueIsThatOfAGuessWhereEnergyAndFlowAgree) {
  auto glow = stirred(2);
  Fce method({}, std::make_shared<FlowEnergy>(glow), glow, 2, kDoubles);
  Random random(torch::kCPU, 1);
  const auto x = random.normal({50, 2}, kDoubles);
  const auto drawn = glow->draw(random.normal({50, 2}, kDoubles));
  const auto v = method.value(x, glow->log_density(x), drawn);
  EXPECT_NEAR(value(v), -2 * std::log(2.0), 1e-12);
}

// E(x) = -|x|^2 / (2 s^2), not normalised.
struct GaussianEnergy : EnergyNet {
  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& /*t*/) override {
    return -0.5 * x.square().sum(1) / (kStd * kStd);
  }
  static constexpr double kStd = 0.7;
};

TEST(Fce, TheBestConstantIsTheLogNormaliser) {
  auto glow = stirred(2);
  const double log_z = std::log(2 * std::numbers::pi * GaussianEnergy::kStd * GaussianEnergy::kStd);
  Random random(torch::kCPU, 1);
  const auto x = GaussianEnergy::kStd * random.normal({200000, 2}, kDoubles);
  GlowImpl::Drawn drawn;
  torch::Tensor log_q;
  {
    const torch::NoGradGuard no_grad;
    drawn = glow->draw(random.normal(x.sizes(), kDoubles));
    log_q = glow->log_density(x);
  }
  // The slope of V in c, below, at and above it.
  const auto slope = [&](double c) {
    FceConfig config;
    config.log_z = c;
    Fce method(config, std::make_shared<GaussianEnergy>(), glow, 2, kDoubles);
    torch::Tensor parameter;
    for (const auto& item : method.module().named_parameters()) {
      if (item.key() == "energy.c") parameter = item.value();
    }
    return value(torch::autograd::grad({method.value(x, log_q, drawn)}, {parameter})[0]);
  };
  EXPECT_NEAR(slope(log_z), 0, 3e-3);
  EXPECT_GT(slope(log_z - 0.3), 0.02);
  EXPECT_LT(slope(log_z + 0.3), -0.02);
}

// A step's losses for the energy and the flow.
std::pair<torch::Tensor, torch::Tensor> losses_at(double progress, Fce& method) {
  Random random(torch::kCPU, 1);
  const auto x = random.normal({16, 2}, kDoubles);
  std::vector<torch::Tensor> of(2);
  method.step(x, torch::full({}, progress, kDoubles), random,
              [&](size_t player, const torch::Tensor& loss, bool) { of.at(player) = loss; });
  return {of[0], of[1]};
}

TEST(Fce, TheFlowLearnsByLikelihoodFirstAndThenAgainstTheEnergy) {
  auto glow = stirred(2);
  FceConfig config;
  config.pretrain = 0.25;
  Fce method(config, std::make_shared<GaussianEnergy>(), glow, 2, kDoubles);
  Random random(torch::kCPU, 1, Random::Generator::own);  // as losses_at draws
  const auto x = random.normal({16, 2}, kDoubles);
  const auto before = losses_at(0.2, method);
  EXPECT_NEAR(value(before.second), -value(glow->log_density(x).mean()), 1e-12);
  const auto after = losses_at(0.25, method);
  random.normal(x.sizes(), kDoubles);  // the energy's points come first
  const auto drawn = glow->draw(random.normal(x.sizes(), kDoubles));
  EXPECT_NEAR(value(after.second), value(method.value(x, glow->log_density(x), drawn)), 1e-12);

  // Its gradient goes through points and densities: that of the whole by differences.
  auto parameter = glow->parameters()[0];
  const auto slope = torch::autograd::grad({after.second}, {parameter})[0];
  const torch::NoGradGuard no_grad;
  const auto moved = [&](double by) {
    parameter[0].add_(by);
    const double v = value(losses_at(0.25, method).second);
    parameter[0].sub_(by);
    return v;
  };
  EXPECT_NEAR(value(slope[0]), (moved(1e-5) - moved(-1e-5)) / 2e-5, 1e-7);
}

TEST(Fce, LearnsAToy) {
  Random random(torch::kCPU, 3);
  PlainConfig net;
  net.energy_hidden = {32, 32};
  Fce method({}, make_plain_energy(2, net), Glow(2, GlowConfig{.couplings = 5, .hidden = {16, 16}}),
             2, kDoubles);
  OptimizerConfig config;
  config.lr = 3e-3;
  config.beta1 = 0.9;
  config.beta2 = 0.999;
  Optimizer optimizer(method, config);
  const auto toy = make_toy("8gaussians");
  for (int64_t i = 0; i < 200; ++i) {
    optimizer.set_iteration(i, 200);
    method.step(
        toy->sample(128, random).to(torch::kDouble), torch::full({}, i / 200.0, kDoubles), random,
        [&](size_t player, const auto& loss, bool last) { optimizer.update(player, loss, last); });
  }
  const torch::NoGradGuard no_grad;
  const auto x = toy->sample(500, random).to(torch::kDouble);
  const auto gain =
      method.log_density(x) - method.log_density(x + random.normal(x.sizes(), kDoubles));
  EXPECT_GT(value(gain.mean()), 0.1);
  EXPECT_TRUE(method.sample(50, random).isfinite().all().item<bool>());
}

}  // namespace
}  // namespace ddaebm
