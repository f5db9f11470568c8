// VERA, and WGAN-0GP, which is VERA without entropy.

#include "ddaebm/methods/vera.h"

#include "plain_fixtures.h"

namespace ddaebm::plain {
namespace {

// x = A z + b + sigma eps: log q(x) = log N(x; b, A A^T + sigma^2 I).
struct LinearGenerator {
  explicit LinearGenerator(VeraConfig config = {}, double sigma = 0.3, double scale = 0.9)
      : vera([&] {
          config.sigma = sigma;
          config.posterior_scale = scale;
          return Vera({2}, solvable_net(), config, kDouble);
        }()),
        A(torch::tensor({{0.5, 0.2}, {-0.1, 0.4}}, kDouble)),
        b(torch::tensor({0.3, -0.7}, kDouble)),
        covariance(A.mm(A.t()) + sigma * sigma * torch::eye(2, kDouble)) {
    set_parameter(*vera.generator(), "weight0", A);
    set_parameter(*vera.generator(), "bias0", b);
    random.restart(Random::kTraining, 1);
  }
  torch::Tensor parameter(const char* name) { return vera.module().named_parameters()[name]; }

  Vera vera;
  torch::Tensor A, b, covariance;
  Random random{torch::kCPU, 2};
};

TEST(Vera, ScoreOfALinearGeneratorIsThatOfItsGaussian) {
  VeraConfig config;
  config.posterior_samples = 4000;
  LinearGenerator g(config);
  const auto z = g.random.normal({200, 2}, kDouble);
  const auto eps = g.random.normal({200, 2}, kDouble);
  const auto score = g.vera.negative_score(z, eps, g.random);
  const auto x = z.mm(g.A.t()) + g.b + 0.3 * eps;
  const auto exact = (x - g.b).mm(g.covariance.inverse());
  EXPECT_LT(value((score - exact).abs().mean()), 0.1);
  EXPECT_GT(value(exact.abs().mean()), 1);
}

TEST(Vera, GeneratorClimbsItsEntropy) {
  VeraConfig config;
  config.posterior_samples = 100;
  config.entropy_weight = 0.7;
  LinearGenerator g(config);
  // E hardly depends on x: what is left of the generator's loss is -0.7 H.
  make_gaussian(g.vera.energy(), torch::full({2}, 1e4, kDouble));
  const auto x0 = torch::zeros({4000, 2}, kDouble);
  const auto loss = record(g.vera, x0, g.random).losses[1].at(0);
  const auto inverse = g.covariance.inverse();
  // H = 1/2 log det(A A^T + sigma^2 I) + constant.
  expect_near(gradient(loss, g.parameter("generator.weight0")), -0.7 * inverse.mm(g.A), 0.1);
  expect_near(gradient(loss, g.parameter("generator.bias0")), torch::zeros({2}, kDouble), 0.1);
  expect_near(gradient(loss, g.parameter("sigma.log_scale")),
              (-0.7 * 0.09 * inverse.trace()).view({1}), 0.05);
}

TEST(Vera, PosteriorScaleClimbsTheElbo) {
  // Its best: s_j^2 = 1 / (1 + |A_j|^2 / sigma^2). The slope in log s_j is 1 - (s_j / best_j)^2.
  for (const double scale : {0.4, 0.6}) {
    LinearGenerator g({}, 0.3, scale);
    const auto x0 = torch::zeros({200000, 2}, kDouble);
    const auto z = g.random.normal(x0.sizes(), kDouble);
    const auto x = z.mm(g.A.t()) + g.b + 0.3 * g.random.normal(x0.sizes(), kDouble);
    const auto elbo = g.vera.posterior_elbo(x, z, g.random);
    const auto best = 1 / (1 + g.A.square().sum(0) / 0.09);
    expect_near(gradient(elbo, g.parameter("posterior_scale.log_scale")), 1 - scale * scale / best,
                0.02);
    EXPECT_EQ(value(gradient(elbo, g.parameter("sigma.log_scale"))), 0);
  }
}

TEST(Vera, UpdatesThreePlayers) {
  Vera vera({2}, small_net(), {}, kDouble);
  Random random(torch::kCPU, 5);
  const auto losses = record(vera, torch::ones({6, 2}, kDouble), random).losses;
  ASSERT_EQ(vera.players().size(), 3U);
  EXPECT_EQ(vera.players()[1].networks, (std::vector<std::string>{"generator", "sigma"}));
  for (const size_t player : {0, 1, 2}) EXPECT_EQ(losses.at(player).size(), 1U) << player;
}

TEST(Wgan0gp, IsVeraWithoutEntropy) {
  small_net();
  const auto method = wgan0gp_settings()->build({2}, kDouble);
  auto& wgan = dynamic_cast<Vera&>(*method);
  ASSERT_EQ(wgan.players().size(), 2U);
  Random random(torch::kCPU, 5);
  const auto x0 = random.normal({6, 2}, kDouble);
  random.restart(Random::kTraining, 0);
  const auto losses = record(wgan, x0, random).losses;
  random.restart(Random::kTraining, 0);
  const auto z = random.normal({6, 2}, kDouble);
  const auto fake = wgan.generator()(z) + 0.01 * random.normal({6, 2}, kDouble);
  const auto e_fake = wgan.energy().forward(fake, {}).mean();
  const auto e_real = wgan.energy().forward(x0, {}).mean();
  EXPECT_NEAR(value(losses.at(1).at(0)), -value(e_fake), 1e-12);
  EXPECT_NEAR(value(losses.at(0).at(0)), value(e_fake - e_real), 1e-12);
}

TEST(Vera, SigmaStaysWithinItsBounds) {
  const auto data = [](Random& random) { return random.normal({50, 2}, kDouble); };
  // Noise is entropy where E is flat; without entropy, a peak of E wants none.
  VeraConfig config;
  config.sigma_min = 0.29;
  config.sigma_max = 0.31;
  LinearGenerator flat(config);
  make_gaussian(flat.vera.energy(), torch::full({2}, 1e4, kDouble));
  train(flat.vera, data, 10, 0.1, {1});
  EXPECT_NEAR(value(flat.vera.sigma()), 0.31, 1e-9);
  config.entropy_weight = 0;
  LinearGenerator peak(config);
  make_gaussian(peak.vera.energy(), torch::full({2}, 0.1, kDouble));
  train(peak.vera, data, 10, 0.1, {1});
  EXPECT_NEAR(value(peak.vera.sigma()), 0.29, 1e-9);
}

TEST(Vera, LearnsADensity) {
  VeraConfig config;
  config.contrast.gamma = 0.1;
  config.entropy_weight = 0.1;
  Vera vera({2}, small_net(), config, kDouble);
  expect_learns(vera, 64, 200, 1e-3);
}

TEST(Wgan0gp, LearnsADensity) {
  VeraConfig config;
  config.contrast.gamma = 0.1;
  config.entropy_weight = 0;
  Vera wgan({2}, small_net(), config, kDouble);
  expect_learns(wgan, 64, 200, 1e-3);
}

}  // namespace
}  // namespace ddaebm::plain
