#include "ddaebm/methods/meg.h"

#include <cmath>

#include "plain_fixtures.h"
#include "refusals.h"

namespace ddaebm::plain {
namespace {

// Fits T alone to pairs of (x, z) and gives what it then mistakes.
double mistakes_after_training(
    const std::function<torch::Tensor(const torch::Tensor&, Random&)>& x) {
  Meg meg({2}, small_net(), {}, kDouble);
  OptimizerConfig adam;
  adam.lr = 3e-3;
  Optimizer optimizer(meg, adam);
  Random random(torch::kCPU, 1);
  for (int64_t i = 0; i < 300; ++i) {
    optimizer.set_iteration(i, 300);
    const auto z = random.normal({256, 2}, kDouble);
    optimizer.update(1, meg.mistakes(x(z, random), z));
  }
  const auto z = random.normal({20000, 2}, kDouble);
  return value(meg.mistakes(x(z, random), z));
}

TEST(Meg, MistakesFallWhereXKnowsOfZ) {
  const auto noisy = [](double noise) {
    return [noise](const torch::Tensor& z, Random& random) {
      return std::sqrt(1 - noise * noise) * z + noise * random.normal(z.sizes(), kDouble);
    };
  };
  const double unrelated = mistakes_after_training(noisy(1.0));
  const double related = mistakes_after_training(noisy(0.7));
  const double close = mistakes_after_training(noisy(0.3));
  EXPECT_NEAR(unrelated, std::log(2), 0.02);
  // The least that any T can reach, log 2 - JS, for Gaussian pairs, by integration over a fine grid
  // of samples: T is the log-ratio of their densities.
  const auto least = [&](double noise) {
    Random random(torch::kCPU, 7);
    const double r2 = 1 - noise * noise;
    const auto z = random.normal({200000, 2}, kDouble);
    const auto x = noisy(noise)(z, random);
    const auto ratio = [&](const torch::Tensor& other) {
      return ((2 * std::sqrt(r2) * x * other - r2 * (x.square() + other.square())) /
                  (2 * (1 - r2)) -
              0.5 * std::log(1 - r2))
          .sum(1);
    };
    return value(0.5 *
                 (torch::softplus(-ratio(z)).mean() + torch::softplus(ratio(z.roll(1, 0))).mean()));
  };
  EXPECT_NEAR(related, least(0.7), 0.03);
  EXPECT_NEAR(close, least(0.3), 0.03);
  EXPECT_LT(close, related - 0.1);
}

TEST(Meg, InformationSpreadsACollapsedGenerator) {
  for (const double weight : {0.0, 1.0}) {
    MegConfig config;
    config.information_weight = weight;
    Meg meg({2}, solvable_net(), config, kDouble);
    make_gaussian(meg.energy(), torch::full({2}, 1e4, kDouble));
    set_parameter(*meg.generator(), "weight0", 0.05 * torch::eye(2, kDouble));
    train(meg, [](Random& random) { return random.normal({160, 2}, kDouble); }, 200, 3e-3, {1});
    const double spread = value(meg.generator()->parameters()[0].det().abs());
    if (weight == 0) {
      EXPECT_NEAR(spread, 0.0025, 0.002);
    } else {
      EXPECT_GT(spread, 0.05);
    }
  }
}

TEST(Meg, FiveUpdatesOfTheEnergyShareABatch) {
  Meg meg({2}, small_net(), {}, kDouble);
  Random random(torch::kCPU, 1);
  // E of data tells which part of the batch an update saw.
  const auto x0 = random.normal({20, 2}, kDouble);
  random.restart(Random::kTraining, 0);
  const auto recorded = record(meg, x0, random);
  ASSERT_EQ(recorded.losses.at(0).size(), 5U);
  ASSERT_EQ(recorded.losses.at(1).size(), 1U);
  random.restart(Random::kTraining, 0);
  for (int64_t i = 0; i < 5; ++i) {
    const auto fake = meg.generator()(random.normal({4, 2}, kDouble));
    // The authors' penalty has weight 0.1 and no 1/2.
    const auto c = contrast(meg.energy(), x0.slice(0, 4 * i, 4 * i + 4), fake, {.gamma = 0.2});
    EXPECT_NEAR(value(recorded.losses.at(0)[static_cast<size_t>(i)]), value(c.loss), 1e-12) << i;
  }
  const auto z = random.normal({4, 2}, kDouble);
  const auto fake = meg.generator()(z);
  EXPECT_NEAR(value(recorded.losses.at(1)[0]),
              value(meg.mistakes(fake, z) - meg.energy().forward(fake, {}).mean()), 1e-12);
  EXPECT_EQ(error_of([&] { record(meg, x0.slice(0, 0, 18), random); }).rfind("train.batch = 18", 0),
            0);
}

TEST(Meg, LearnsADensity) {
  Meg meg({2}, small_net(), {}, kDouble);
  expect_learns(meg, 5 * 32, 200, 1e-3);
}

}  // namespace
}  // namespace ddaebm::plain
