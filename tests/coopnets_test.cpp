#include "ddaebm/methods/coopnets.h"

#include "plain_fixtures.h"

namespace ddaebm::plain {
namespace {

// A step on log N(0, v) is x (1 - d^2 / 2v) + d eps, whose variance settles at v / (1 - d^2 / 4v).
TEST(Coopnets, LangevinSettlesAtTheDensity) {
  for (const double reference : {0.0, 0.8}) {
    CoopnetsConfig config;
    config.langevin_steps = 100;
    config.langevin_step = 0.3;
    config.reference_std = reference;
    Coopnets coop({2}, solvable_net(), config, kDouble);
    const auto std = torch::tensor({0.5, 1.0}, kDouble);
    make_gaussian(coop.energy(), std);
    // The product of two Gaussians.
    const auto precision = 1 / std.square() + (reference > 0 ? 1 / (reference * reference) : 0);
    const double delta2 = 0.09;
    Random random(torch::kCPU, 1);
    const auto x = coop.revise(torch::full({10000, 2}, 1.0, kDouble), random);
    expect_near(x.mean(0), torch::zeros({2}, kDouble), 0.03);
    expect_near(x.var(0) * precision, 1 / (1 - 0.25 * delta2 * precision), 0.04);
    // The density that is told has that precision too.
    const auto points = torch::tensor({{0.0, 0.0}, {1.0, 0.0}, {0.0, 1.0}}, kDouble);
    const auto log_p = coop.log_density(points);
    expect_near(log_p[0] - log_p.slice(0, 1), 0.5 * precision, 1e-12);
  }
}

TEST(Coopnets, NoStepsLeavePointsWhereTheyAre) {
  CoopnetsConfig config;
  config.langevin_steps = 0;
  Coopnets coop({2}, small_net(), config, kDouble);
  Random random(torch::kCPU, 1);
  const auto x = random.normal({5, 2}, kDouble);
  expect_near(coop.revise(x, random), x, 0);
}

TEST(Coopnets, LossesAreTheirFormulas) {
  Coopnets coop({2}, small_net(), {}, kDouble);
  Random random(torch::kCPU, 1);
  const auto x0 = random.normal({8, 2}, kDouble);
  random.restart(Random::kTraining, 0);
  const auto losses = record(coop, x0, random).losses;
  random.restart(Random::kTraining, 0);
  const auto made = coop.generator()(random.normal({8, 2}, kDouble));
  const auto revised = coop.revise(made, random);
  EXPECT_FALSE(revised.requires_grad());
  const auto e = [&](const torch::Tensor& x) { return coop.energy().forward(x, {}).mean(); };
  EXPECT_NEAR(value(losses.at(0).at(0)), value(e(revised) - e(x0)), 1e-12);
  EXPECT_NEAR(value(losses.at(1).at(0)), value((revised - made).square().sum(1).mean()) / 0.18,
              1e-12);
}

// The generator follows the revised points to where E is high, and only because they are revised.
TEST(Coopnets, GeneratorLearnsWhatLangevinDoes) {
  for (const int64_t steps : {0, 10}) {
    CoopnetsConfig config;
    config.langevin_steps = steps;
    config.langevin_step = 0.2;
    Coopnets coop({2}, solvable_net(), config, kDouble);
    make_gaussian(coop.energy(), torch::full({2}, 0.5, kDouble));
    set_parameter(*coop.generator(), "bias0", torch::full({2}, 2.0, kDouble));
    train(coop, [](Random& random) { return random.normal({64, 2}, kDouble); }, 250, 1e-2, {1});
    const double away = value(coop.generator()->parameters()[1].abs().max());
    if (steps == 0) {
      EXPECT_NEAR(away, 2.0, 1e-12);
    } else {
      EXPECT_LT(away, 0.3);
    }
  }
}

TEST(Coopnets, LearnsADensity) {
  CoopnetsConfig config;
  config.langevin_step = 0.1;
  config.contrast.gamma = 0.02;
  Coopnets coop({2}, small_net(), config, kDouble);
  expect_learns(coop, 64, 200, 1e-3);
}

}  // namespace
}  // namespace ddaebm::plain
