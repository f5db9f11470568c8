// The calibrated game: E(x, t) as the log-density of x_t, with its scale and its level.

#include <cmath>
#include <memory>
#include <mutex>
#include <numbers>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "ddaebm/error.h"
#include "ddaebm/methods/ddaebm.h"
#include "ddaebm/nets/wave_mlp.h"
#include "ddaebm/train/optimizer.h"
#include "ddaebm/train/settings.h"

namespace ddaebm {
namespace {

const torch::TensorOptions kDouble(torch::kDouble);
constexpr int64_t kSteps = 3;

// log N(x; 0, variance[t]) + level[t], for the times of data and then of generated points.
struct ExactEnergy : EnergyNet {
  explicit ExactEnergy(const std::vector<double>& of_times)
      : variances(register_parameter("variances", torch::tensor(of_times, kDouble))),
        levels(register_parameter("levels", torch::zeros_like(variances.detach()))) {}
  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& t) override {
    const auto v = variances.index_select(0, t);
    const auto d = static_cast<double>(x.size(1));
    return -0.5 * x.square().sum(1) / v - 0.5 * d * (2 * std::numbers::pi * v).log() +
           levels.index_select(0, t);
  }
  torch::Tensor variances, levels;
};

// Guesses x_{t+1}, so that a generated x_t is Gaussian.
struct PlainGenerator : GeneratorNet {
  torch::Tensor forward(const torch::Tensor& x_next, const torch::Tensor& /*z*/,
                        const torch::Tensor& /*t*/) override {
    return x_next;
  }
};

Schedule schedule() {
  ScheduleConfig config;
  config.steps = kSteps;
  config.beta_max = 4;
  return Schedule(config);
}

GameConfig calibrated() {
  GameConfig game;
  game.calibrate = true;
  game.noise_at_t0 = true;
  game.latent_weight = 1;
  game.forward_weight = game.reverse_weight = 0.03;
  return game;
}

// Data of unit variance stay so under the diffusion; all densities of the game are then known.
class KnownGame {
 public:
  explicit KnownGame(int64_t proposals = 1, double origin_share = 0) {
    const Schedule s = schedule();
    std::vector<double> variances(kSteps, 1.0);
    for (size_t t = 0; t < kSteps; ++t) {
      const double kept = s.posterior_x0[t] + s.posterior_next[t];
      variances.push_back(kept * kept + s.posterior_variance[t]);
    }
    energy = std::make_shared<ExactEnergy>(variances);
    MlpConfig net;
    net.trunk = {4};
    Networks nets = make_vector_networks(2, kSteps, net);
    nets.energy = energy;
    nets.generator = std::make_shared<PlainGenerator>();
    GameConfig config = calibrated();
    config.proposals = proposals;
    config.origin_share = origin_share;
    method =
        std::make_unique<Ddaebm>(s, config, nets, net.latent, std::vector<int64_t>{2}, kDouble);
  }
  // dL/dlevel, or dL/dvariance, of E at each time, then of F.
  torch::Tensor gradient() { return gradient(energy->levels); }
  torch::Tensor gradient(const torch::Tensor& parameter, int64_t rows = 50000) {
    Random random(torch::kCPU, 3);
    const auto x0 = random.normal({rows, 2}, kDouble);
    const Noise noise = method->draw(x0, random);
    auto found = torch::zeros_like(parameter);
    std::mutex adding;
    method->play(x0, noise, [&](size_t player, const torch::Tensor& loss, bool) {
      if (player != 0 || !loss.defined()) return;
      const std::lock_guard lock(adding);
      found += torch::autograd::grad({loss}, {parameter})[0];
    });
    return found;
  }
  std::shared_ptr<ExactEnergy> energy;
  std::unique_ptr<Ddaebm> method;
};

TEST(Calibration, TheLossIsAtRestAtTheLogDensities) {
  for (const double origin_share : {0.0, 0.4}) {
    KnownGame game(1, origin_share);
    constexpr int64_t kRows = 200000;
    EXPECT_LT(game.gradient(game.energy->levels, kRows).abs().max().item<double>(), 2e-3);
    EXPECT_LT(game.gradient(game.energy->variances, kRows).abs().max().item<double>(), 4e-3);
  }
}

// What the three logits of the first step share, only later steps would correct.
TEST(Calibration, AShareOfTheGaussianHoldsEveryStepByItself) {
  const auto pull = [](double origin_share) {
    KnownGame game(1, origin_share);
    auto levels = game.energy->levels.detach();
    levels[0] = levels[1] = levels[kSteps] = 0.3;  // E(., 0), E(., 1), F(., 0)
    return game.gradient()[0].item<double>();
  };
  EXPECT_NEAR(pull(0), 0, 2e-3);
  EXPECT_GT(pull(0.4), 0.01);
}

TEST(Calibration, EachLevelIsPulledBack) {
  for (int64_t k = 0; k < 2 * kSteps; ++k) {
    KnownGame game;
    game.energy->levels.detach()[k] = 0.3;
    EXPECT_GT(game.gradient()[k].item<double>(), 0.01) << k;
  }
}

// The generator's points are too narrow here, by a known factor; the weights undo it.
TEST(Calibration, ProposalsAreChosenUntilTheyAreTheData) {
  constexpr int64_t kSamples = 40000;
  const auto variance_with = [&](int64_t proposals) {
    KnownGame game(proposals);
    Random random(torch::kCPU, 5);
    const auto path = game.method->sample_path(kSamples, random);
    EXPECT_EQ(path.size(), static_cast<size_t>(kSteps) + 1);
    for (const auto& x : path) EXPECT_EQ(x.size(0), kSamples);
    return path.back().var().item<double>();
  };
  EXPECT_GT(std::abs(variance_with(1) - 1), 0.1);
  EXPECT_NEAR(variance_with(4), 1, 0.02);
}

// What all share would be free, were there no Gaussian of known density.
TEST(Calibration, TheLevelOfAllIsPulledBackToo) {
  KnownGame game;
  game.energy->levels.detach().fill_(0.3);
  EXPECT_GT(game.gradient().sum().item<double>(), 0.01);
  game.energy->levels.detach().fill_(-0.3);
  EXPECT_LT(game.gradient().sum().item<double>(), -0.01);
}

// The paper's game sees differences of E alone, at points of the data and generated ones.
TEST(Calibration, TheScaleIsPulledBack) {
  KnownGame game;
  game.energy->variances.detach()[0] = 0.6;
  EXPECT_LT(game.gradient(game.energy->variances)[0].item<double>(), -0.01);
  game.energy->variances.detach()[0] = 1.6;
  EXPECT_GT(game.gradient(game.energy->variances)[0].item<double>(), 0.01);
}

class CalibrationOfHeads : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(, CalibrationOfHeads, testing::Bool());

TEST_P(CalibrationOfHeads, AShortTrainingGivesANormalisedDensity) {
  MlpConfig net;
  net.layers = LayerKind::waves;
  net.heads = GetParam();
  net.waves = 2;
  net.trunk = {48, 48};
  Random random(torch::kCPU, 4);
  Ddaebm method(schedule(), calibrated(), make_vector_networks(2, kSteps, net, 2 * kSteps),
                net.latent, {2}, kDouble);
  OptimizerConfig adam;
  adam.lr = 4e-3;
  adam.beta1 = 0.5;
  adam.beta2 = 0.99;
  adam.schedule = RateSchedule::cosine;
  adam.lr_end = 0.05;
  Optimizer optimizer(method, adam);
  constexpr int64_t kIterations = 500;
  for (int64_t i = 0; i < kIterations; ++i) {
    random.restart(Random::kTraining, static_cast<uint64_t>(i));
    optimizer.set_iteration(i, kIterations);
    // Two modes, of a third and two thirds.
    const auto mode = (random.uniform({256, 1}, kDouble) < 1.0 / 3).to(torch::kDouble);
    const auto x0 = 0.3 * random.normal({256, 2}, kDouble) + 2 * mode - 1;
    method.step(x0, torch::zeros({}, kDouble), random,
                [&](size_t player, const torch::Tensor& loss, bool last) {
                  optimizer.update(player, loss, last);
                });
  }
  method.module().eval();
  const torch::NoGradGuard no_grad;
  const auto axis = torch::linspace(-4, 4, 161, kDouble);
  const auto grid = torch::stack(torch::meshgrid({axis, axis}, "ij"), -1).view({-1, 2});
  const double log_cell = 2 * std::log(0.05);
  for (int64_t t = 0; t < kSteps; ++t) {
    const double log_z = method.log_density_at(grid, t).logsumexp(0).item<double>() + log_cell;
    EXPECT_NEAR(log_z, 0.0, 0.25) << t;
  }
  const auto p = (method.log_density(grid) + log_cell).exp();
  const double right = (p * (grid.sum(1) > 0).to(torch::kDouble)).sum().item<double>();
  EXPECT_NEAR(right / p.sum().item<double>(), 1.0 / 3, 0.1);
}

TEST_P(CalibrationOfHeads, SeveralTimesAreEachByItself) {
  MlpConfig net;
  net.layers = LayerKind::waves;
  net.trunk = {9, 7};
  net.heads = GetParam();
  const auto energy = make_vector_networks(2, kSteps, net, 2 * kSteps).energy;
  energy->to(torch::kDouble);
  Random random(torch::kCPU, 3);
  const auto x = random.normal({5, 2}, kDouble);
  const auto times = random.integers(2 * kSteps, {3, 5});
  const auto together = energy->at_times(x, times);
  ASSERT_EQ(together.sizes(), times.sizes());
  for (int64_t k = 0; k < 3; ++k) {
    EXPECT_LT((together[k] - energy->forward(x, times[k])).abs().max().item<double>(), 1e-12);
  }
  const auto first = energy->forward(x, torch::zeros({5}, torch::kLong));
  EXPECT_GT((first - energy->forward(x, torch::ones({5}, torch::kLong))).abs().min().item<double>(),
            1e-6)
      << "times differ";
}

TEST(Calibration, HeadsNeedWaves) {
  RunSettings settings(ConfigFile::parse("[net]\nheads = true\n", "my.toml"));
  EXPECT_THROW(settings.method_settings->build({2}, kDouble), Error);
}

TEST(Calibration, ImagesAreRefused) {
  RunSettings settings(ConfigFile::parse("[game]\ncalibrate = true\n", "my.toml"));
  try {
    settings.method_settings->build({3, 32, 32}, kDouble);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("game.calibrate is set"), std::string::npos)
        << error.what();
  }
}

TEST(Calibration, WhatDoesNotGoWithItIsRefused) {
  for (const char* other : {"reference_std = 1.5", "score_weight = 0.1", "fake_margin = 10"}) {
    RunSettings settings(ConfigFile::parse(
        fmt::format("[game]\ncalibrate = true\ngamma = 0\n{}\n", other), "my.toml"));
    EXPECT_THROW(settings.method_settings->build({2}, kDouble), Error) << other;
  }
}

TEST(WaveMlp, SecondDerivativesAreFiniteDifferences) {
  Random random(torch::kCPU, 1);
  const WaveMlp net(2, 1, 3, std::vector<int64_t>{6, 5, 4}, 3);
  const auto t = torch::arange(4, torch::kLong) % 3;
  const auto x = random.normal({4, 2}, kDouble).requires_grad_();
  const auto gradient = [&](const torch::Tensor& at) {
    return torch::autograd::grad({net->forward(at, t).sum()}, {at}, {}, true, true)[0];
  };
  const auto direction = random.normal({4, 2}, kDouble);
  const auto exact = torch::autograd::grad({(gradient(x) * direction).sum()}, {x})[0];
  const double h = 1e-5;
  const auto shifted = [&](double by) {
    return gradient((x.detach() + by * direction).requires_grad_()).detach();
  };
  const auto difference = (shifted(h) - shifted(-h)) / (2 * h);
  EXPECT_LT((exact - difference).abs().max().item<double>(), 1e-7);
}

}  // namespace
}  // namespace ddaebm
