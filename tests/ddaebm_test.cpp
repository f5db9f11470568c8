// The game, switch by switch: the losses of one iteration against their formulas, worked out here
// from the networks themselves.

#include "ddaebm/methods/ddaebm.h"

#include <cmath>
#include <functional>
#include <memory>
#include <mutex>
#include <numbers>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "ddaebm/error.h"
#include "ddaebm/train/optimizer.h"

namespace ddaebm {
namespace {

const torch::TensorOptions kDouble(torch::kDouble);
constexpr int64_t kBatch = 12;

MlpConfig small_net() {
  MlpConfig net;
  net.branch = {5, 6};
  net.trunk = {8, 7};
  net.embedding = 6;
  net.code = 4;
  net.latent = 3;
  return net;
}

// A method with the same weights and the same draws each time, in float64.
struct Game {
  explicit Game(const GameConfig& config = {}, int64_t dimension = 2, int64_t T = 4,
                const MlpConfig& net = small_net())
      : schedule([&] {
          ScheduleConfig s;
          s.steps = T;
          s.beta_max = 8;
          return Schedule(s);
        }()),
        random(torch::kCPU, 5),
        latent(net.latent),
        nets(make_vector_networks(dimension, T, net)),
        method(schedule, config, nets, latent, {dimension}, kDouble),
        process(schedule, kDouble, config.reconstruction_variance_floor) {
    random.restart(Random::kTraining, 0);
    x0 = random.normal({kBatch, dimension}, kDouble);
    // Drawn without the switches' help, so that all games see the same numbers.
    noise.t = torch::arange(kBatch, torch::kLong) % T;
    noise.eps_t = random.normal(x0.sizes(), kDouble);
    noise.eps_next = random.normal(x0.sizes(), kDouble);
    noise.z = random.normal({kBatch, latent}, kDouble);
    noise.eps_fake = random.normal(x0.sizes(), kDouble);
    noise.eps_encoder = random.normal({kBatch, latent}, kDouble);
  }

  Iteration play() {
    return method.play(x0, noise, [](size_t, const torch::Tensor&, bool) {});
  }
  Steps at() const { return process.at(noise.t, 2); }
  torch::Tensor energy(const torch::Tensor& x) { return nets.energy->forward(x, noise.t); }
  torch::Tensor lambda(double w, double w_mid) const {
    return torch::tensor(schedule.importance(w, w_mid), kDouble).index_select(0, noise.t + 1);
  }

  Schedule schedule;
  Random random;  // seeds the initial weights too
  int64_t latent;
  Networks nets;
  Ddaebm method;
  Process process;
  torch::Tensor x0;
  Noise noise;
};

double value(const torch::Tensor& x) { return x.item<double>(); }

void expect_same(const torch::Tensor& a, const torch::Tensor& b, const char* what) {
  ASSERT_EQ(a.sizes(), b.sizes()) << what;
  EXPECT_LE((a - b).abs().max().item<double>(), 1e-12) << what;
}

// What no switch of a loss may touch.
void expect_same_points(const Iteration& a, const Iteration& b) {
  expect_same(a.x_t, b.x_t, "x_t");
  expect_same(a.x_next, b.x_next, "x_{t+1}");
  expect_same(a.x0_guess, b.x0_guess, "x0_guess");
  expect_same(a.fake, b.fake, "fake");
}
void expect_same_energy_update(const Iteration& a, const Iteration& b) {
  expect_same(a.energy_real, b.energy_real, "energy_real");
  expect_same(a.energy_fake, b.energy_fake, "energy_fake");
  expect_same(a.penalty, b.penalty, "penalty");
  expect_same(a.energy_loss, b.energy_loss, "energy_loss");
}
void expect_same_generator_update(const Iteration& a, const Iteration& b) {
  expect_same(a.reconstruction_loss, b.reconstruction_loss, "reconstruction_loss");
  expect_same(a.kl_loss, b.kl_loss, "kl_loss");
  expect_same(a.latent_loss, b.latent_loss, "latent_loss");
  expect_same(a.fake_energy_term, b.fake_energy_term, "fake_energy_term");
  expect_same(a.generator_loss, b.generator_loss, "generator_loss");
}

// Parameters of a network that a loss depends on.
int64_t used_parameters(const torch::Tensor& loss, torch::nn::Module& network) {
  const auto parameters = network.parameters();
  const auto gradients = torch::autograd::grad({loss}, parameters, {}, /*retain_graph=*/true,
                                               /*create_graph=*/false, /*allow_unused=*/true);
  int64_t used = 0;
  for (const auto& g : gradients) used += g.defined() && g.abs().max().item<double>() > 0 ? 1 : 0;
  return used;
}

TEST(Game, DefaultLossesAreTheirFormulas) {
  Game game;
  const Iteration it = game.play();
  const Steps at = game.at();
  const auto& t = game.noise.t;
  expect_same(it.x_t, at.diffuse(game.x0, game.noise.eps_t), "x_t");
  expect_same(it.x_next, at.advance(it.x_t, game.noise.eps_next), "x_{t+1}");
  expect_same(it.x0_guess, game.nets.generator->forward(it.x_next, game.noise.z, t), "G");
  expect_same(it.fake, at.posterior_sample(it.x0_guess, it.x_next, game.noise.eps_fake, false),
              "fake");

  // The energy's loss, its gradient penalty by autograd.
  const auto x = it.x_t.detach().requires_grad_();
  const auto real = game.energy(x);
  const auto slope = torch::autograd::grad({real.sum()}, {x})[0] + at.grad_log_q(it.x_next, it.x_t);
  expect_same(it.energy_real, real, "E of real points");
  expect_same(it.energy_fake, game.energy(it.fake), "E of generated points");
  expect_same(it.penalty_gradient, slope, "what the penalty holds down");
  const auto penalty = 0.5 * 0.02 * slope.square().sum(1).mean();
  expect_same(it.penalty, penalty, "penalty");
  expect_same(it.energy_loss, it.energy_fake.mean() - it.energy_real.mean() + penalty,
              "the energy's loss");

  // The generator's.
  const auto code = game.nets.encoder->forward(it.x_t, it.x_next, t);
  expect_same(it.code.mean, code.mean, "code");
  const auto z = code.mean + (0.5 * code.log_variance).exp() * game.noise.eps_encoder;
  const auto guess = game.nets.generator->forward(it.x_next, z, t);
  expect_same(it.x0_reconstruction, guess, "reconstruction");
  expect_same(it.reconstruction_loss, -at.posterior_log_density(it.x_t, guess, it.x_next).mean(),
              "nll");
  const auto variance = code.log_variance.exp();
  expect_same(it.kl_loss,
              (0.5 * (code.mean.square() + variance - 1) - 0.5 * code.log_variance).sum(1).mean(),
              "KL to the prior");
  const auto q = game.nets.encoder->forward(it.fake, it.x_next, t);
  const auto nll = (0.5 * q.log_variance +
                    0.5 * (game.noise.z - q.mean).square() / (q.log_variance.exp() + 1e-6))
                       .sum(1)
                       .mean();
  expect_same(it.latent_loss, 0.1 * nll, "latent term");
  expect_same(it.fake_energy_term, -(game.energy(it.fake) + at.log_q(it.x_next, it.fake)).mean(),
              "E of G");
  expect_same(it.generator_loss,
              it.fake_energy_term + it.latent_loss + it.kl_loss + it.reconstruction_loss,
              "the generator's loss");
}

TEST(Game, KlAloneLeavesTheReverseDivergenceOut) {
  Game whole;
  const Iteration full = whole.play();
  GameConfig config;
  config.divergence = Divergence::kl;
  Game game(config);
  const Iteration it = game.play();
  expect_same_points(it, full);
  expect_same_energy_update(it, full);
  EXPECT_EQ(value(it.reconstruction_loss), 0);
  EXPECT_EQ(value(it.kl_loss), 0);
  EXPECT_FALSE(it.code.mean.defined());
  EXPECT_FALSE(it.x0_reconstruction.defined());
  expect_same(it.latent_loss, full.latent_loss, "latent term");
  expect_same(it.generator_loss, it.fake_energy_term + it.latent_loss, "sum");
  EXPECT_GT(used_parameters(it.generator_loss, *game.nets.encoder), 0);

  config.posterior_term = false;
  Game bare(config);
  const Iteration none = bare.play();
  EXPECT_EQ(value(none.latent_loss), 0);
  expect_same(none.generator_loss, none.fake_energy_term, "sum");
  EXPECT_EQ(used_parameters(none.generator_loss, *bare.nets.encoder), 0);
  EXPECT_GT(used_parameters(none.generator_loss, *bare.nets.generator), 0);
}

TEST(Game, ThePosteriorTermAloneGoes) {
  Game whole;
  const Iteration full = whole.play();
  GameConfig config;
  config.posterior_term = false;
  const Iteration it = Game(config).play();
  expect_same_points(it, full);
  expect_same_energy_update(it, full);
  EXPECT_EQ(value(it.latent_loss), 0);
  expect_same(it.generator_loss, full.generator_loss - full.latent_loss, "sum");
}

TEST(Game, LatentWeightScalesTheLatentLossOnly) {
  const Iteration tenth = Game().play();
  GameConfig config;
  config.latent_weight = 1.0;
  const Iteration one = Game(config).play();
  expect_same_points(one, tenth);
  expect_same_energy_update(one, tenth);
  expect_same(one.latent_loss, 10 * tenth.latent_loss, "latent term");
  expect_same(one.generator_loss, tenth.generator_loss + 9 * tenth.latent_loss, "sum");
}

TEST(Game, WithoutLatentNothingDependsOnZ) {
  GameConfig config;
  config.latent = false;
  Game game(config);
  Random random(torch::kCPU, 1);
  const Noise noise = game.method.draw(game.x0, random);
  EXPECT_EQ(value(noise.z.abs().max()), 0);
  EXPECT_EQ(value(noise.eps_encoder.abs().max()), 0);
  game.noise.z.zero_();
  game.noise.eps_encoder.zero_();
  const Iteration it = game.play();
  EXPECT_EQ(value(it.latent_loss), 0);
  expect_same(it.x0_reconstruction, it.x0_guess, "both from z = 0");
  EXPECT_EQ(used_parameters(it.reconstruction_loss, *game.nets.encoder), 0);

  // The generator's columns of z take no part in sampling.
  game.method.module().eval();
  random.restart(Random::kSampling, 0);
  const auto before = game.method.sample(9, random);
  {
    const torch::NoGradGuard no_grad;
    for (auto& item : game.nets.generator->named_parameters()) {
      if (item.key() == "net.x_branch.weight0") item.value().slice(1, 2).fill_(100.0);
    }
  }
  random.restart(Random::kSampling, 0);
  expect_same(game.method.sample(9, random), before, "samples");
}

TEST(Game, SamplesDependOnZWhereThereIsOne) {
  Game game;
  game.method.module().eval();
  Random random(torch::kCPU, 1);
  const auto before = game.method.sample(9, random);
  {
    const torch::NoGradGuard no_grad;
    for (auto& item : game.nets.generator->named_parameters()) {
      if (item.key() == "net.x_branch.weight0") item.value().slice(1, 2).mul_(-3.0);
    }
  }
  random.restart(Random::kInitial, 0);
  EXPECT_GT(value((game.method.sample(9, random) - before).abs().max()), 1e-3);
}

TEST(Game, ReconstructionIsASquareOrFromThePriorsZ) {
  Game whole;
  const Iteration full = whole.play();
  GameConfig config;
  config.reconstruction = Reconstruction::mse;
  Game mse(config);
  const Iteration it = mse.play();
  const auto square = [&](const Iteration& i) {
    return (i.x_t - mse.at().posterior_mean(i.x0_reconstruction, i.x_next)).square().sum(1).mean();
  };
  expect_same(it.x0_reconstruction, full.x0_reconstruction, "the encoder's z");
  expect_same(it.reconstruction_loss, square(it), "squares");
  expect_same_energy_update(it, full);
  expect_same(it.kl_loss, full.kl_loss, "KL to the prior");
  expect_same(it.latent_loss, full.latent_loss, "latent term");

  config.reconstruction_latent = ReconstructionLatent::prior;
  Game prior(config);
  const Iteration from_prior = prior.play();
  expect_same(from_prior.x0_reconstruction, from_prior.x0_guess, "the prior's z");
  expect_same(from_prior.reconstruction_loss, square(from_prior), "squares");
  EXPECT_EQ(used_parameters(from_prior.reconstruction_loss, *prior.nets.encoder), 0);
  expect_same(from_prior.kl_loss, full.kl_loss, "KL to the prior");

  config.reconstruction = Reconstruction::nll;
  Game nll(config);
  const Iteration last = nll.play();
  expect_same(last.reconstruction_loss,
              -nll.at().posterior_log_density(last.x_t, last.x0_guess, last.x_next).mean(), "nll");
}

TEST(Game, TheVarianceFloorBelongsToNll) {
  GameConfig config;
  config.reconstruction_variance_floor = 0.5;
  Game game(config);
  const Iteration it = game.play();
  expect_same(it.reconstruction_loss,
              -game.at().posterior_log_density(it.x_t, it.x0_reconstruction, it.x_next).mean(),
              "nll");
  expect_same_energy_update(it, Game().play());
}

TEST(Game, LambdaWeighsTheReconstructionOrAllOfL2) {
  const Iteration full = Game().play();
  GameConfig config;
  config.reconstruction = Reconstruction::mse;
  config.lambda_w = 0.6;
  config.lambda_w_mid = 0.2;
  Game game(config);
  const Iteration it = game.play();
  const auto lambda = game.lambda(0.6, 0.2);
  const auto squares =
      (it.x_t - game.at().posterior_mean(it.x0_reconstruction, it.x_next)).square().sum(1);
  const auto& c = it.code;
  const auto kl = 0.5 * (c.mean.square() + c.log_variance.exp() - c.log_variance - 1).sum(1);
  expect_same(it.reconstruction_loss, (lambda * squares).mean(), "weighted");
  expect_same(it.kl_loss, kl.mean(), "not weighted");
  expect_same_energy_update(it, full);

  config.lambda_scope = ImportanceScope::both;
  const Iteration both = Game(config).play();
  expect_same(both.reconstruction_loss, it.reconstruction_loss, "weighted as before");
  expect_same(both.kl_loss, (lambda * kl).mean(), "weighted too");
  expect_same(both.latent_loss, full.latent_loss, "not part of L2");
  expect_same(both.fake_energy_term, full.fake_energy_term, "not part of L2");
}

TEST(Game, ReverseWeightScalesL2) {
  const Iteration full = Game().play();
  GameConfig config;
  config.reverse_weight = 0.25;
  const Iteration it = Game(config).play();
  expect_same_energy_update(it, full);
  expect_same(it.kl_loss, full.kl_loss, "KL to the prior");
  expect_same(it.reconstruction_loss, full.reconstruction_loss, "reconstruction");
  expect_same(
      it.generator_loss,
      full.fake_energy_term + full.latent_loss + 0.25 * (full.kl_loss + full.reconstruction_loss),
      "sum");
}

TEST(Game, GammaZeroIsNoPenalty) {
  const Iteration full = Game().play();
  GameConfig config;
  config.gamma = 0;
  const Iteration it = Game(config).play();
  EXPECT_EQ(value(it.penalty), 0);
  expect_same(it.energy_loss, full.energy_loss - full.penalty, "the energy's loss");
  expect_same_generator_update(it, full);
}

TEST(Game, GeneratedPointsBeyondTheMarginNoLongerCount) {
  GameConfig config;
  config.gamma = 0;
  const auto play = [](Game& game) {
    game.noise.eps_fake = 30 * game.noise.eps_fake;  // far enough for some E to be low
    return game.play();
  };
  Game whole(config);
  const Iteration all = play(whole);
  const auto below = all.energy_real.mean() - all.energy_fake;
  const auto in_order = std::get<0>(below.sort());
  config.fake_margin = value((in_order[kBatch - 3] + in_order[kBatch - 2]) / 2);
  ASSERT_GT(config.fake_margin, 0);
  Game game(config);
  const Iteration it = play(game);
  const auto counts = below < config.fake_margin;
  const int64_t left_out = (~counts).sum().item<int64_t>();
  ASSERT_GT(left_out, 0);
  ASSERT_LT(left_out, kBatch);
  const auto n = static_cast<double>(kBatch);
  const auto floor = all.energy_real.mean() - config.fake_margin;
  expect_same(it.energy_loss,
              torch::where(counts, all.energy_fake, floor).mean() - all.energy_real.mean(),
              "the energy's loss");
  const auto of_fake = torch::autograd::grad({it.energy_loss}, {it.energy_fake})[0];
  expect_same(of_fake, counts.to(kDouble) / n, "what each counts");
}

TEST(Game, ThePenaltyMayLeaveLogQOut) {
  GameConfig config;
  config.penalty_log_q = false;
  Game game(config);
  const Iteration it = game.play();
  const auto x = it.x_t.detach().requires_grad_();
  const auto slope = torch::autograd::grad({game.energy(x).sum()}, {x})[0];
  expect_same(it.penalty_gradient, slope, "dE/dx alone");
  expect_same(it.penalty, 0.01 * slope.square().sum(1).mean(), "penalty");
  const Iteration full = Game().play();
  EXPECT_GT(std::abs(value(it.penalty - full.penalty)), 1e-6);
  expect_same_generator_update(it, full);
}

TEST(Game, TheScoreTakesThePlaceOfThePenaltyWhereThereIsNoise) {
  GameConfig config;
  config.score_weight = 0.3;
  Game game(config);
  const Iteration it = game.play();
  const Steps at = game.at();
  const auto x = it.x_t.detach().requires_grad_();
  const auto slope = torch::autograd::grad({game.energy(x).sum()}, {x})[0];
  const auto first = 0.02 * (slope + at.grad_log_q(it.x_next, it.x_t)).square().sum(1);
  const auto sigma = torch::tensor(game.schedule.sigma_bar, kDouble).index_select(0, game.noise.t);
  const auto off = sigma.unsqueeze(1) * slope + game.noise.eps_t;
  const auto rows = torch::where(game.noise.t == 0, first, 0.3 * off.square().sum(1));
  expect_same(it.penalty, 0.5 * rows.mean(), "penalty");
  expect_same(it.energy_loss, it.energy_fake.mean() - it.energy_real.mean() + it.penalty,
              "the energy's loss");
  expect_same_generator_update(it, Game().play());
}

// What is asked of the slope is least for the density itself: Gaussian data, of which E knows all
// but the width.
TEST(Game, TheScoreIsThatOfTheDiffusedData) {
  constexpr double kWidth = 0.6;
  const auto penalty = [&](double width) {
    GameConfig config;
    config.score_weight = 1.0;
    config.gamma = 0.0;
    config.reference_std = width;
    Game game(config);
    const torch::NoGradGuard no_grad;
    for (auto& p : game.nets.energy->parameters()) p.zero_();
    game.x0 = kWidth * game.random.normal({4000, 2}, kDouble);
    game.noise = game.method.draw(game.x0, game.random);
    const torch::AutoGradMode with_gradients(true);
    return value(game.play().penalty);
  };
  const double right = penalty(kWidth);
  EXPECT_LT(right, penalty(0.8 * kWidth));
  EXPECT_LT(right, penalty(1.25 * kWidth));
}

TEST(Game, FakeWeightScalesGeneratedPointsInTheEnergysLoss) {
  const Iteration full = Game().play();
  GameConfig config;
  config.fake_weight = 0.1;
  const Iteration it = Game(config).play();
  expect_same(it.energy_loss,
              0.1 * full.energy_fake.mean() - full.energy_real.mean() + full.penalty,
              "the energy's loss");
  expect_same(it.penalty, full.penalty, "penalty");
  expect_same_generator_update(it, full);
}

TEST(Game, EnergyL2HoldsTheLevelOfE) {
  const Iteration full = Game().play();
  GameConfig config;
  config.energy_l2 = 0.3;
  const Iteration it = Game(config).play();
  expect_same(it.energy_loss,
              full.energy_loss +
                  0.3 * (full.energy_real.square().mean() + full.energy_fake.square().mean()),
              "the energy's loss");
  expect_same_generator_update(it, full);
}

TEST(Game, NoiseAtT0TouchesThoseRowsOnly) {
  const Iteration full = Game().play();
  GameConfig config;
  config.noise_at_t0 = true;
  Game game(config);
  const Iteration it = game.play();
  const auto first = game.noise.t == 0;
  const auto moved = (it.fake - full.fake).abs().sum(1);
  EXPECT_GT(value(moved.masked_select(first).min()), 0);
  EXPECT_EQ(value(moved.masked_select(~first).max()), 0);
  expect_same(it.x0_guess, full.x0_guess, "x0_guess");
  expect_same(it.energy_real, full.energy_real, "E of real points");
  const double deviation = std::sqrt(game.schedule.posterior_variance[0]);
  expect_same((it.fake - full.fake).index({first}),
              (deviation * game.noise.eps_fake).index({first}), "the posterior's noise");
}

TEST(Game, AReferenceAddsItsGaussianToE) {
  GameConfig config;
  config.reference_std = 1.5;
  Game with(config);
  Game without;
  Random random(torch::kCPU, 8);
  const auto x = random.normal({6, 2}, kDouble);
  for (int64_t t = 0; t < 4; ++t) {
    const double a = with.schedule.a_bar[static_cast<size_t>(t)];
    const double variance = 1.5 * 1.5 * a * a + 1 - a * a;
    expect_same(with.method.log_density_at(x, t),
                without.method.log_density_at(x, t) - x.square().sum(1) / (2 * variance),
                "log_density");
  }
  expect_same(with.method.log_density(x), with.method.log_density_at(x, 0), "of clean data");
  // The penalty sees the whole of E.
  const Iteration it = with.play();
  const auto points = it.x_t.detach().requires_grad_();
  const auto e = with.energy(points) + with.at().log_gaussian(points, 1.5);
  expect_same(it.energy_real, e, "E of real points");
  expect_same(
      it.penalty_gradient,
      torch::autograd::grad({e.sum()}, {points})[0] + with.at().grad_log_q(it.x_next, it.x_t),
      "what the penalty holds down");
}

TEST(Game, EachLossMovesItsOwnPlayerOnly) {
  Game game;
  std::vector<size_t> order;
  std::mutex one_at_a_time;
  game.method.play(game.x0, game.noise, [&](size_t player, const torch::Tensor& loss, bool last) {
    const std::lock_guard lock(one_at_a_time);
    if (last) order.push_back(player);
    if (!loss.defined()) return;
    if (player == 0) {
      EXPECT_GT(used_parameters(loss, *game.nets.energy), 0);
      EXPECT_EQ(used_parameters(loss, *game.nets.generator), 0);
      EXPECT_EQ(used_parameters(loss, *game.nets.encoder), 0);
    } else {
      EXPECT_GT(used_parameters(loss, *game.nets.generator), 0);
      EXPECT_GT(used_parameters(loss, *game.nets.encoder), 0);
    }
  });
  EXPECT_EQ(order, (std::vector<size_t>{0, 1}));
  ASSERT_EQ(game.method.players().size(), 2U);
  EXPECT_EQ(game.method.players()[0].networks, (std::vector<std::string>{"energy"}));
  EXPECT_EQ(game.method.players()[1].networks, (std::vector<std::string>{"generator", "encoder"}));
}

TEST(Game, PlaysInAnyDimensionAndNumberOfSteps) {
  for (const int64_t dimension : {1, 3, 10}) {
    for (const int64_t T : {1, 2, 8}) {
      SCOPED_TRACE(std::to_string(dimension) + " columns, " + std::to_string(T) + " steps");
      GameConfig config;
      config.reference_std = 1;
      Game game(config, dimension, T);
      Optimizer optimizer(game.method, {});
      Random random(torch::kCPU, 3);
      for (int64_t i = 0; i < 2; ++i) {
        optimizer.set_iteration(i, 2);
        const auto losses =
            game.method.step(game.x0, torch::zeros({}, kDouble), random,
                             [&](size_t player, const torch::Tensor& loss, bool last) {
                               optimizer.update(player, loss, last);
                             });
        ASSERT_EQ(losses.sizes(),
                  torch::IntArrayRef({static_cast<int64_t>(game.method.loss_names().size())}));
        EXPECT_TRUE(losses.isfinite().all().item<bool>());
        EXPECT_FALSE(losses.requires_grad());
      }
      game.method.module().eval();
      const auto path = game.method.sample_path(5, random);
      ASSERT_EQ(path.size(), static_cast<size_t>(T) + 1);
      EXPECT_EQ(path.back().sizes(), torch::IntArrayRef({5, dimension}));
      EXPECT_EQ(game.method.log_density(path.back()).sizes(), torch::IntArrayRef({5}));
      EXPECT_TRUE(path.back().isfinite().all().item<bool>());
    }
  }
}

TEST(Game, AShareOfABatchIsAtTheFirstStep) {
  GameConfig config;
  config.first_share = 0.6;
  const Game game(config, 2, 4);
  Random random(torch::kCPU, 3);
  const auto t = game.method.draw(torch::zeros({40000, 2}, kDouble), random).t;
  const auto share = torch::bincount(t).to(torch::kDouble) / 40000;
  const auto wanted = torch::tensor({0.7, 0.1, 0.1, 0.1}, kDouble);
  EXPECT_LT((share - wanted).abs().max().item<double>(), 0.01);
}

// One that is sure without limit would end a training by a single point.
TEST(Networks, AnEncodersVarianceHasBounds) {
  torch::manual_seed(1);  // of some initial weights only one bound is reached
  for (const LayerKind layers : {LayerKind::branches, LayerKind::waves}) {
    MlpConfig config;
    config.layers = layers;
    config.norm = Norm::none;
    const auto encoder = make_vector_networks(2, 4, config).encoder;
    const auto log_variance_at = [&](double size) {
      const auto x = torch::randn({64, 2}, kDouble) * size;
      return encoder->forward(x, -x, torch::zeros({64}, torch::kLong)).log_variance;
    };
    EXPECT_GT(log_variance_at(1).std().item<double>(), 0.0);
    const auto extreme = log_variance_at(1e6);
    EXPECT_GE(extreme.min().item<double>(), -12.0);
    EXPECT_LE(extreme.max().item<double>(), 6.0);
    EXPECT_GT(extreme.max().item<double>() - extreme.min().item<double>(), 17.0) << "both reached";
  }
}

TEST(Game, StepReportsTheLossesUnderTheirNames) {
  Game game;
  game.random.restart(Random::kTraining, 1);
  const auto losses = game.method.step(game.x0, torch::zeros({}, kDouble), game.random,
                                       [](size_t, const torch::Tensor&, bool) {});
  Game again;
  again.random.restart(Random::kTraining, 1);
  again.noise = again.method.draw(again.x0, again.random);
  const Iteration it = again.play();
  const std::vector<std::pair<std::string, double>> wanted = {
      {"energy", value(it.energy_loss)},
      {"generator", value(it.generator_loss)},
      {"penalty", value(it.penalty)},
      {"energy_real", value(it.energy_real.mean())},
      {"energy_fake", value(it.energy_fake.mean())},
      {"reconstruction", value(it.reconstruction_loss)},
      {"kl_to_prior", value(it.kl_loss)},
      {"latent", value(it.latent_loss)},
      {"fake_energy", value(it.fake_energy_term)}};
  ASSERT_EQ(game.method.loss_names().size(), wanted.size());
  for (size_t k = 0; k < wanted.size(); ++k) {
    EXPECT_EQ(game.method.loss_names()[k], wanted[k].first);
    EXPECT_NEAR(value(losses[static_cast<int64_t>(k)]), wanted[k].second, 1e-12) << wanted[k].first;
  }
}

// Gradients of both losses, the penalty's second derivatives included, against differences.
TEST(Game, GradientsAreFiniteDifferences) {
  GameConfig config;
  config.gamma = 0.5;
  config.energy_l2 = 0.1;
  config.reference_std = 1.2;
  config.lambda_w = 0.6;
  config.lambda_w_mid = 0.2;
  Game game(config);
  const auto losses = [&] {
    const Iteration it = game.play();
    return std::vector<torch::Tensor>{it.energy_loss, it.generator_loss};
  };
  const std::vector<torch::nn::Module*> networks = {
      game.nets.energy.get(), game.nets.generator.get(), game.nets.encoder.get()};
  for (size_t n = 0; n < networks.size(); ++n) {
    const size_t which = n == 0 ? 0 : 1;
    const auto parameters = networks[n]->named_parameters();
    for (const auto& item : parameters) {
      auto parameter = item.value();
      const auto gradient =
          torch::autograd::grad({losses()[which]}, {parameter}, {}, false, false, true)[0];
      // One entry of each tensor, not always the first.
      const int64_t entry = parameter.numel() / 2;
      const double exact = gradient.defined() ? gradient.reshape({-1})[entry].item<double>() : 0.0;
      auto cell = parameter.detach().view({-1})[entry];
      const double kept = cell.item<double>();
      const double h = 1e-6;
      cell.fill_(kept + h);
      const double above = value(losses()[which]);
      cell.fill_(kept - h);
      const double below = value(losses()[which]);
      cell.fill_(kept);
      EXPECT_NEAR(exact, (above - below) / (2 * h), 1e-6 * (1 + std::abs(exact)))
          << n << " " << item.key();
    }
  }
}

// Higher means more likely.
TEST(Game, ScoresDataHigherThanFarPointsAfterShortTraining) {
  GameConfig config;
  config.gamma = 0.1;
  Game game(config);
  OptimizerConfig adam;
  adam.lr = 2e-3;
  Optimizer optimizer(game.method, adam);
  Random random(torch::kCPU, 4);
  const auto data = [&] { return 0.2 * random.normal({64, 2}, kDouble) + 0.5; };
  for (int64_t i = 0; i < 300; ++i) {
    random.restart(Random::kTraining, static_cast<uint64_t>(i));
    optimizer.set_iteration(i, 300);
    const auto x0 = data();
    game.method.step(x0, torch::zeros({}, kDouble), random,
                     [&](size_t player, const torch::Tensor& loss, bool last) {
                       optimizer.update(player, loss, last);
                     });
  }
  game.method.module().eval();
  const double near = value(game.method.log_density(data()).mean());
  const auto angle = torch::arange(16, kDouble) * (2 * std::numbers::pi / 16);
  const auto far = 3 * torch::stack({angle.cos(), angle.sin()}, 1);
  EXPECT_GT(near, value(game.method.log_density(far).mean()));
}

TEST(Game, AnUnknownMethodListsTheKnownOnes) {
  try {
    method_settings("gan");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()).rfind("method 'gan' is unknown; known: bidvl, ", 0), 0)
        << error.what();
  }
}

}  // namespace
}  // namespace ddaebm
