#include "ddaebm/methods/bidvl.h"

#include <cmath>

#include "plain_fixtures.h"

namespace ddaebm::plain {
namespace {

torch::Tensor used(Bidvl& bidvl, const torch::Tensor& loss, const char* network) {
  auto total = torch::zeros({}, kDouble);
  for (const auto& item : bidvl.module().named_parameters()) {
    if (item.key().rfind(network, 0) != 0) continue;
    total = total + gradient(loss, item.value()).abs().sum();
  }
  return total;
}

TEST(Bidvl, LatentErrorMovesTheGeneratorAlone) {
  Bidvl bidvl({2}, small_net(), {}, kDouble);
  Random random(torch::kCPU, 1);
  const auto z = random.normal({8, 2}, kDouble);
  const auto fake = bidvl.generator()(z);
  const auto error = bidvl.latent_error(fake, z);
  EXPECT_NEAR(value(error), value((bidvl.infer(fake).mean - z).square().sum(1).mean()) / 2, 1e-12);
  EXPECT_GT(value(used(bidvl, error, "generator.")), 0);
  EXPECT_EQ(value(used(bidvl, error, "encoder.")), 0);
  const auto reconstruction = bidvl.reconstruction_loss(fake.detach(), random);
  EXPECT_GT(value(used(bidvl, reconstruction, "generator.")), 0);
  EXPECT_GT(value(used(bidvl, reconstruction, "encoder.")), 0);
}

TEST(Bidvl, ReconstructionIsANegativeElbo) {
  auto net = solvable_net();
  net.encoder_hidden = {};
  Bidvl bidvl({2}, net, {}, kDouble);
  // q(z | x) = N(x / 2, e^-1), G(z) = 2 z.
  auto& module = bidvl.module();
  set_parameter(module, "encoder.weight0",
                torch::cat({0.5 * torch::eye(2, kDouble), torch::zeros({2, 2}, kDouble)}));
  set_parameter(module, "encoder.bias0", torch::tensor({0.0, 0.0, -1.0, -1.0}, kDouble));
  set_parameter(module, "generator.weight0", 2 * torch::eye(2, kDouble));
  set_parameter(module, "generator.bias0", torch::zeros({2}, kDouble));
  Random random(torch::kCPU, 1);
  const auto x = random.normal({50000, 2}, kDouble);
  // |x - 2 z|^2 has mean 2 * 4 e^-1; the divergence is 1/2 sum(x^2 / 4 + e^-1 + 1 - 1).
  const double expected = 8 * std::exp(-1) + value(x.square().sum(1).mean()) / 8 + std::exp(-1);
  EXPECT_NEAR(value(bidvl.reconstruction_loss(x, random)), expected, 0.05);
}

TEST(Bidvl, LossesAreTheirFormulas) {
  Bidvl bidvl({2}, small_net(), {}, kDouble);
  Random random(torch::kCPU, 1);
  const auto x0 = random.normal({8, 2}, kDouble);
  random.restart(Random::kTraining, 0);
  const auto losses = record(bidvl, x0, random).losses;
  random.restart(Random::kTraining, 0);
  const auto z = random.normal({8, 2}, kDouble);
  const auto fake = bidvl.generator()(z);
  const auto e = bidvl.energy().forward(fake, {}).mean();
  EXPECT_NEAR(value(losses.at(0).at(0)), value(e - bidvl.energy().forward(x0, {}).mean()), 1e-12);
  auto squares = torch::zeros({}, kDouble);
  for (const auto& item : bidvl.module().named_parameters()) {
    if (item.key().rfind("energy.", 0) != 0) squares = squares + item.value().square().sum();
  }
  EXPECT_NEAR(value(losses.at(1).at(0)),
              value(bidvl.latent_error(fake, z) - e + 0.05 * bidvl.reconstruction_loss(x0, random) +
                    0.5e-4 * squares),
              1e-12);
}

// An encoder that reads z from x keeps the generator from making one point of all z.
TEST(Bidvl, ReadableLatentsSpreadTheGenerator) {
  for (const double weight : {0.0, 1.0}) {
    auto net = solvable_net();
    net.encoder_hidden = {};
    BidvlConfig config;
    config.latent_weight = weight;
    config.reconstruction_weight = 0;
    config.weight_decay = 0;
    Bidvl bidvl({2}, net, config, kDouble);
    make_gaussian(bidvl.energy(), torch::full({2}, 10.0, kDouble));
    auto& module = bidvl.module();
    set_parameter(module, "encoder.weight0", torch::eye(4, 2, kDouble));
    set_parameter(module, "encoder.bias0", torch::zeros({4}, kDouble));
    set_parameter(module, "generator.weight0", 0.01 * torch::eye(2, kDouble));
    train(bidvl, [](Random& random) { return random.normal({64, 2}, kDouble); }, 300, 5e-3, {1});
    const double spread = value(bidvl.generator()->parameters()[0].det().abs());
    if (weight == 0) {
      EXPECT_LT(spread, 0.05);
    } else {
      EXPECT_GT(spread, 0.5);
    }
  }
}

TEST(Bidvl, LearnsADensity) {
  BidvlConfig config;
  config.contrast.gamma = 0.1;
  Bidvl bidvl({2}, small_net(), config, kDouble);
  expect_learns(bidvl, 64, 300, 1e-3);
}

}  // namespace
}  // namespace ddaebm::plain
