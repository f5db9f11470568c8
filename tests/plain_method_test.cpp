// What methods without a diffusion share.

#include "ddaebm/methods/plain_method.h"

#include <cmath>

#include "plain_fixtures.h"
#include "refusals.h"

namespace ddaebm::plain {
namespace {

TEST(Contrast, IsItsFormulaOnAQuadraticEnergy) {
  const auto energy = make_plain_energy(2, solvable_net());
  const auto std = torch::tensor({0.5, 2.0}, kDouble);
  make_gaussian(*energy, std);
  Random random(torch::kCPU, 1);
  const auto real = random.normal({7, 2}, kDouble);
  const auto fake = random.normal({7, 2}, kDouble);
  const Contrast c = contrast(*energy, real, fake, {.gamma = 0.3, .fake_weight = 0.1});
  // dE/dx = -x / std^2.
  const double penalty = value(0.15 * (real / std.square()).square().sum(1).mean());
  const auto log_normal = [&](const torch::Tensor& x) {
    return value((-0.5 * (x / std).square() - std.log()).sum(1).mean() - std::log(2 * M_PI));
  };
  EXPECT_NEAR(value(c.penalty), penalty, 1e-12);
  EXPECT_NEAR(value(c.real), log_normal(real), 1e-12);
  EXPECT_NEAR(value(c.fake), log_normal(fake), 1e-12);
  EXPECT_NEAR(value(c.loss), 0.1 * log_normal(fake) - log_normal(real) + penalty, 1e-12);

  // The penalty is part of what is differentiated: d/ds of gamma / 2 e^{4 s} x^2, s = -log std.
  const auto scale = energy->named_parameters()["flow.scale"];
  expect_near(gradient(c.penalty, scale), 0.6 * (real.square() / std.pow(4)).mean(0), 1e-12);
}

TEST(Contrast, WithoutGammaThereIsNoPenalty) {
  const auto energy = make_plain_energy(2, small_net());
  const auto x = torch::ones({3, 2}, kDouble);
  const Contrast c = contrast(*energy, x, -x, {});
  EXPECT_EQ(value(c.penalty), 0);
  EXPECT_NEAR(value(c.loss), value(c.fake - c.real), 1e-14);
}

TEST(Contrast, GradientsDoNotReachTheGenerator) {
  const auto energy = make_plain_energy(2, small_net());
  auto generator = make_plain_generator(2, small_net());
  const auto fake = generator(torch::ones({3, 2}, kDouble));
  const Contrast c = contrast(*energy, torch::ones({3, 2}, kDouble), fake, {});
  for (const auto& weight : generator->parameters()) {
    EXPECT_EQ(value(gradient(c.loss, weight).abs().max()), 0);
  }
}

TEST(Frozen, LeavesParametersOutForAWhile) {
  Mlp net(1, std::vector<int64_t>{1}, Norm::none);
  const auto x = torch::ones({1, 1}, kDouble).requires_grad_();
  torch::Tensor frozen;
  {
    const Frozen constant(*net);
    frozen = net(x).sum();
  }
  EXPECT_EQ(value(gradient(frozen, net->parameters()[0])), 0);
  EXPECT_NE(value(gradient(frozen, x)), 0);
  EXPECT_EQ(value(gradient(net(x).sum(), net->parameters()[0])), 1);
}

TEST(PlainMethods, RefuseImages) {
  for (const char* name : {"vera", "wgan0gp", "meg", "bidvl", "coopnets"}) {
    EXPECT_EQ(error_of([&] {
                method_settings(name)->build({3, 8, 8}, torch::kFloat);
              }).rfind("data of shape [3, 8, 8]", 0),
              0)
        << name;
  }
}

// What annealing and Langevin steps on a trained model need.
TEST(LogDensity, OfEveryMethodHasTheGradientOfItsValue) {
  for (const char* name : {"bidvl", "coopnets", "ddaebm", "ddgan", "drl", "dsm", "ebmbb", "fce",
                           "meg", "mle", "ssm", "vera", "wgan0gp"}) {
    torch::manual_seed(1);
    const auto method = method_settings(name)->build({2}, torch::kDouble);
    method->module().eval();
    const auto x = torch::tensor({{0.3, -0.7}, {1.1, 0.4}}, torch::kDouble).requires_grad_();
    const auto value = method->log_density(x);
    ASSERT_TRUE(value.requires_grad()) << name;
    const auto slope = torch::autograd::grad({value.sum()}, {x})[0];
    const torch::NoGradGuard no_grad;
    constexpr double kStep = 1e-6;
    for (int64_t k = 0; k < 2; ++k) {
      const auto move = torch::zeros({1, 2}, torch::kDouble);
      move[0][k] = kStep;
      const auto measured =
          (method->log_density(x + move) - method->log_density(x - move)) / (2 * kStep);
      EXPECT_LT((measured - slope.select(1, k)).abs().max().item<double>(),
                1e-4 * (1 + slope.abs().max().item<double>()))
          << name;
    }
  }
}

}  // namespace
}  // namespace ddaebm::plain
