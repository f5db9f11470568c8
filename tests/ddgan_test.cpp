// The denoising diffusion GAN: its losses and penalty against their formulas, what its
// discriminator tends to, and a short training.

#include "ddaebm/methods/ddgan.h"

#include <cmath>
#include <memory>
#include <vector>

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "ddaebm/train/optimizer.h"

namespace ddaebm {
namespace {

const torch::TensorOptions kDouble(torch::kDouble);

double value(const torch::Tensor& x) { return x.item<double>(); }

// u^T A u + c of the pair u = [x_t, x_{t+1}].
struct QuadraticDiscriminator : EnergyNet {
  explicit QuadraticDiscriminator(const torch::Tensor& a)
      : matrix(register_parameter("matrix", a)),
        constant(register_parameter("constant", torch::zeros({1}, kDouble))) {}
  torch::Tensor forward(const torch::Tensor& u, const torch::Tensor& /*t*/) override {
    return (u.matmul(matrix) * u).sum(1) + constant;
  }
  torch::Tensor matrix, constant;
};

// x_0 = pull x_{t+1} + spread z: a known Gaussian.
struct LinearGenerator : GeneratorNet {
  LinearGenerator(double p, double s) : pull(p), spread(s) {}
  torch::Tensor forward(const torch::Tensor& x_next, const torch::Tensor& z,
                        const torch::Tensor& /*t*/) override {
    return pull * x_next + spread * z;
  }
  double pull, spread;
};

ScheduleConfig one_clean_step() {
  ScheduleConfig config;
  config.steps = 1;
  config.beta_max = 2.0;
  config.time_eps = 0;
  return config;
}

TEST(Ddgan, R1IsHalfGammaTimesTheSquaredSlopeInXtAlone) {
  Random random(torch::kCPU, 3);
  const auto a = random.normal({4, 4}, kDouble);
  auto net = std::make_shared<QuadraticDiscriminator>(a.clone());
  DdganConfig config;
  config.gamma = 0.6;
  const Schedule schedule{ScheduleConfig{}};
  Ddgan method(schedule, config, net, std::make_shared<LinearGenerator>(0.3, 0.2), 2, {2}, kDouble);
  const auto x0 = random.normal({7, 2}, kDouble);
  const auto draws = method.draw(x0, random);
  const auto it = method.discriminator_loss(x0, draws);

  const Process process(schedule, kDouble);
  const Steps at = process.at(draws.t, 2);
  const auto x_t = at.diffuse(x0, draws.eps_t);
  const auto x_next = at.advance(x_t, draws.eps_next);
  const auto u = torch::cat({x_t, x_next}, 1);
  // d(u^T A u)/dx_t = the first rows of (A + A^T) u.
  const auto slope = u.matmul(a + a.t()).slice(1, 0, 2);
  EXPECT_NEAR(value(it.penalty), 0.3 * value(slope.square().sum(1).mean()), 1e-12);
  const auto fake =
      at.posterior_sample(0.3 * x_next + 0.2 * draws.z, x_next, draws.eps_fake, false);
  const auto d = [&](const torch::Tensor& pair) { return (pair.matmul(a) * pair).sum(1); };
  EXPECT_NEAR(value(it.loss),
              value((1 + (-d(u)).exp()).log().mean() +
                    (1 + d(torch::cat({fake, x_next}, 1)).exp()).log().mean() + it.penalty),
              1e-10);
  EXPECT_NEAR(value(method.generator_loss(x0, draws)),
              value((1 + (-d(torch::cat({fake, x_next}, 1))).exp()).log().mean()), 1e-10);

  // Its gradient in A: with P the projection on x_t, gamma mean of (s u^T + u s^T), s = P slope.
  const auto s = torch::cat({slope, torch::zeros_like(slope)}, 1);
  const auto outer = s.t().matmul(u) / 7;
  const auto gradient = torch::autograd::grad({it.penalty}, {net->matrix})[0];
  EXPECT_LE(value((gradient - 0.6 * (outer + outer.t())).abs().max()), 1e-12);
}

// x_0 ~ N(0, 1), x_1 = a x_0 + sigma e, so q(x_0 | x_1) = N(a x_1, sigma^2); the generator draws
// N(p x_1, s^2). The best discriminator is the logarithm of their ratio.
TEST(Ddgan, TheDiscriminatorTendsToTheLogRatio) {
  const Schedule schedule{one_clean_step()};
  auto net = std::make_shared<QuadraticDiscriminator>(torch::zeros({2, 2}, kDouble));
  const double pull = 0.3;
  const double spread = 0.9;
  DdganConfig config;
  config.gamma = 0;
  Ddgan method(schedule, config, net, std::make_shared<LinearGenerator>(pull, spread), 1, {1},
               kDouble);
  OptimizerConfig adam;
  adam.lr = 0.05;
  adam.schedule = RateSchedule::cosine;
  adam.lr_end = 0.01;
  adam.beta1 = 0.5;
  adam.beta2 = 0.99;
  Optimizer optimizer(method, adam);
  Random random(torch::kCPU, 4);
  constexpr int64_t kSteps = 500;
  for (int64_t i = 0; i < kSteps; ++i) {
    optimizer.set_iteration(i, kSteps);
    method.step(random.normal({2000, 1}, kDouble), torch::zeros({}, kDouble), random,
                [&](size_t player, const torch::Tensor& loss, bool last) {
                  if (player == 0) optimizer.update(player, loss, last);
                });
  }
  const double a = schedule.a[1];
  const double sigma = schedule.sigma[1];
  const auto grid = torch::linspace(-1.5, 1.5, 7, kDouble);
  const auto x = grid.repeat({7});
  const auto x1 = grid.repeat_interleave(7);
  const auto log_gaussian = [&](const torch::Tensor& mean, double deviation) {
    return -0.5 * ((x - mean) / deviation).square() - std::log(deviation);
  };
  const auto ratio = log_gaussian(a * x1, sigma) - log_gaussian(pull * x1, spread);
  const torch::NoGradGuard no_grad;
  const auto found = net->forward(torch::stack({x, x1}, 1), {});
  EXPECT_GT(value(ratio.abs().max()), 1.0);
  EXPECT_LE(value((found - ratio).abs().max()), 0.1);
}

// D = x . x_1 has mean a |x|^2 over x_1 ~ N(a x, sigma^2).
TEST(Ddgan, LogDensityIsTheMeanOfDOverX1) {
  auto a = torch::zeros({4, 4}, kDouble);
  a[0][2] = a[1][3] = 1;
  const Schedule schedule{ScheduleConfig{}};
  Ddgan method(schedule, {}, std::make_shared<QuadraticDiscriminator>(a),
               std::make_shared<LinearGenerator>(0.3, 0.2), 2, {2}, kDouble);
  Random random(torch::kCPU, 5);
  const auto x = random.normal({9, 2}, kDouble);
  const auto mean = schedule.a[1] * x.square().sum(1);
  EXPECT_LE(value((method.log_density(x) - mean).abs().max()), 1e-12);
}

TEST(Ddgan, PartsOfABatchGiveTheWholeStep) {
  const auto gradients = [](int64_t micro_batch) {
    Random random(torch::kCPU, 6);
    MlpConfig net;
    net.norm = Norm::none;
    const auto discriminator = make_vector_networks(4, 4, net).energy;
    const auto generator = make_vector_networks(2, 4, net).generator;
    Ddgan method(Schedule{ScheduleConfig{}}, {}, discriminator, generator, net.latent, {2},
                 kDouble);
    method.micro_batch = micro_batch;
    const std::vector<torch::nn::Module*> of = {discriminator.get(), generator.get()};
    std::vector<torch::Tensor> sums(2);
    const auto losses = method.step(
        random.normal({10, 2}, kDouble), torch::zeros({}, kDouble), random,
        [&](size_t player, const torch::Tensor& loss, bool /*last*/) {
          std::vector<torch::Tensor> flat;
          for (const auto& g : torch::autograd::grad({loss}, of[player]->parameters(), {},
                                                     /*retain_graph=*/false, false, true)) {
            if (g.defined()) flat.push_back(g.flatten());
          }
          const auto all = torch::cat(flat);
          sums[player] = sums[player].defined() ? sums[player] + all : all;
        });
    sums.push_back(losses);
    return sums;
  };
  const auto whole = gradients(0);
  const auto parts = gradients(4);
  for (size_t i = 0; i < whole.size(); ++i) {
    EXPECT_LE(value((whole[i] - parts[i]).abs().max()), 1e-12) << i;
  }
}

TEST(Ddgan, LearnsWhereDataLie) {
  Random random(torch::kCPU, 7);
  MlpConfig net;
  net.trunk = {64, 64};
  ScheduleConfig diffusion;
  diffusion.time_eps = 0;
  const auto discriminator = make_vector_networks(4, 4, net).energy;
  Ddgan method(Schedule{diffusion}, {}, discriminator, make_vector_networks(2, 4, net).generator,
               net.latent, {2}, kDouble);
  OptimizerConfig adam;
  adam.lr = 1e-3;
  adam.beta1 = 0.5;
  Optimizer optimizer(method, adam);
  const auto centre = torch::tensor({0.8, -0.5}, kDouble);
  constexpr int64_t kSteps = 400;
  for (int64_t i = 0; i < kSteps; ++i) {
    optimizer.set_iteration(i, kSteps);
    const auto x0 = centre + 0.1 * random.normal({100, 2}, kDouble);
    const auto losses = method.step(x0, torch::zeros({}, kDouble), random,
                                    [&](size_t player, const torch::Tensor& loss, bool last) {
                                      optimizer.update(player, loss, last);
                                    });
    ASSERT_TRUE(losses.isfinite().all().item<bool>()) << i;
  }
  method.module().eval();
  const auto distance = [&](const torch::Tensor& x) {
    return value((x - centre).norm(2, 1).mean());
  };
  EXPECT_LT(distance(method.sample(1000, random)), 0.5);
  EXPECT_GT(distance(random.normal({1000, 2}, kDouble)), 1.2);
}

TEST(Ddgan, PlaysOnImages) {
  const auto settings = method_settings("ddgan");
  Fields fields;
  settings->visit(fields);
  ConfigFile::parse(R"(
[image_net]
channels = 4
multipliers = [1, 2]
blocks = 1
attention = [8]
latent = 3
latent_width = 6
latent_layers = 1
encoder_width = 2
encoder_time = 4
)",
                    "test")
      .fill(fields);
  Random random(torch::kCPU, 8);
  const auto method = settings->build({1, 16, 16}, kDouble);
  Optimizer optimizer(*method, {});
  const auto x0 = random.normal({4, 1, 16, 16}, kDouble).tanh();
  const auto losses = method->step(x0, torch::zeros({}, kDouble), random,
                                   [&](size_t player, const torch::Tensor& loss, bool last) {
                                     optimizer.update(player, loss, last);
                                   });
  EXPECT_TRUE(losses.isfinite().all().item<bool>());
  EXPECT_GT(value(losses[2]), 0);  // the penalty
  method->module().eval();
  EXPECT_EQ(method->log_density(x0).sizes(), torch::IntArrayRef({4}));
  EXPECT_EQ(method->sample(3, random).sizes(), torch::IntArrayRef({3, 1, 16, 16}));
}

}  // namespace
}  // namespace ddaebm
