// EBM with bidirectional bounds: the generator's entropy, the two bounds where the likelihood is
// known, and a short training.

#include "ddaebm/methods/ebmbb.h"

#include <cmath>
#include <memory>
#include <numbers>
#include <vector>

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "ddaebm/error.h"
#include "ddaebm/train/optimizer.h"

namespace ddaebm {
namespace {

const torch::TensorOptions kDouble(torch::kDouble);
const double kLogTwoPi = std::log(2 * std::numbers::pi);

double value(const torch::Tensor& x) { return x.item<double>(); }

// F(x) = -|x - mean|^2 / (2 variance) in two dimensions: log Z = log(2 pi variance).
struct GaussianEnergy : EnergyNet {
  GaussianEnergy(const torch::Tensor& m, double v)
      : mean(register_parameter("mean", m)),
        variance(register_parameter("variance", torch::full({1}, v, kDouble))) {}
  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& /*t*/) override {
    return (x - mean).square().sum(1) / (-2 * variance);
  }
  torch::Tensor mean, variance;
};

// x = A z + b.
Mlp linear_generator(const torch::Tensor& a, const torch::Tensor& b) {
  Mlp net(a.size(1), std::vector{a.size(0)}, Norm::none);
  const torch::NoGradGuard no_grad;
  torch::Tensor(net->layers()[0].weight).copy_(a);
  torch::Tensor(net->layers()[0].bias).copy_(b);
  return net;
}

Ebmbb make(const EbmbbConfig& config, std::shared_ptr<EnergyNet> energy, const torch::Tensor& a,
           const torch::Tensor& b) {
  return Ebmbb(config, std::move(energy), linear_generator(a, b), a.size(1), kDouble);
}

TEST(Ebmbb, EntropyOfALinearGeneratorIsLogVolumePlusThatOfZ) {
  const auto a = torch::tensor({{1.0, 0.4}, {-0.7, 0.9}, {0.2, 1.3}}, kDouble);
  const auto zero3 = torch::zeros({3}, kDouble);
  Random random(torch::kCPU, 3);
  const auto z = random.normal({5, 2}, kDouble);
  EbmbbConfig config;
  config.volume = Volume::determinant;
  Ebmbb exact = make(config, std::make_shared<GaussianEnergy>(zero3, 1), a, zero3);
  const auto image = exact.image(z);
  EXPECT_LE(value((image.x - z.matmul(a.t())).abs().max()), 1e-12);
  EXPECT_LE(value((image.jacobian - a).abs().max()), 1e-12);
  const double log_det = 0.5 * value(a.t().matmul(a).det().log());
  EXPECT_LE(value((exact.log_volume(image.jacobian) - log_det).abs().max()), 1e-12);
  const auto it = exact.bracket(image.x, image.x, z, image, torch::ones({}, kDouble));
  EXPECT_NEAR(value(it.entropy), log_det + 1 + kLogTwoPi, 1e-12);

  // By the smallest singular value, which is never more.
  config.volume = Volume::smallest;
  Ebmbb bound = make(config, std::make_shared<GaussianEnergy>(zero3, 1), a, zero3);
  const double smallest = value(std::get<1>(at::linalg_svd(a, false))[1]);
  EXPECT_LE(value((bound.log_volume(image.jacobian) - 2 * std::log(smallest)).abs().max()), 1e-9);
  EXPECT_LT(2 * std::log(smallest), log_det);
}

// Also where singular values are far apart or equal, and for its gradient.
TEST(Ebmbb, VolumesAreThoseOfTheSingularValues) {
  Random random(torch::kCPU, 4);
  auto jacobian = random.normal({6, 5, 3}, kDouble);
  jacobian[0] *= 1e-4;
  jacobian[1].select(1, 0) *= 1e3;
  jacobian[2] = torch::eye(5, kDouble).slice(1, 0, 3);
  jacobian.requires_grad_();
  const auto zero = torch::zeros({3}, kDouble);
  for (const Volume volume : {Volume::smallest, Volume::determinant}) {
    EbmbbConfig config;
    config.volume = volume;
    Ebmbb method =
        make(config, std::make_shared<GaussianEnergy>(zero, 1), torch::eye(3, kDouble), zero);
    const auto s = std::get<1>(at::linalg_svd(jacobian, false));
    const auto wanted = volume == Volume::smallest ? 3 * s.select(1, 2).log() : s.log().sum(1);
    const auto found = method.log_volume(jacobian);
    EXPECT_LE(value((found - wanted).abs().max()), 1e-6);
    const auto gradient = [&](const torch::Tensor& y) {
      // Equal singular values have no gradient of their own.
      const auto picked = torch::cat({y.slice(0, 0, 2), y.slice(0, 3)}).sum();
      return torch::autograd::grad({picked}, {jacobian}, {}, true)[0];
    };
    const auto exact = gradient(wanted);
    EXPECT_LE(value(((gradient(found) - exact) / exact.abs().amax({1, 2}, true).clamp_min(1e-9))
                        .abs()
                        .max()),
              1e-4);
  }
}

// The slope of log p_g(g(z)) in z is -z, because the generator is piecewise linear.
TEST(Ebmbb, PiecewiseLinearGeneratorsHaveVolumesWithoutSlope) {
  Random random(torch::kCPU, 5);
  PlainConfig net;
  net.generator_hidden = {7, 6};
  auto generator = make_plain_generator(2, net);
  generator->eval();
  const auto z = random.normal({9, 2}, kDouble);
  auto energy = std::make_shared<GaussianEnergy>(torch::zeros({2}, kDouble), 1);
  EbmbbConfig config;
  config.volume = Volume::determinant;
  Ebmbb method(config, energy, generator, 2, kDouble);
  const auto here = method.log_volume(method.image(z).jacobian);
  const auto near = method.log_volume(method.image(z + 1e-9).jacobian);
  EXPECT_LE(value((here - near).abs().max()), 1e-12);
  EXPECT_GT(value(here.std()), 0);  // though it differs from piece to piece
}

// Data ~ N(data mean, I), so E_data[-F] is known, and log Z is; z are many and standardised, so
// that means over them are those over the Gaussian.
struct KnownCase {
  explicit KnownCase(double variance) : energy_variance(variance) {
    Random random(torch::kCPU, 6);
    const auto half = random.normal({2000, 2}, kDouble);
    z = torch::cat({half, -half});
    const auto root = at::linalg_cholesky(z.t().matmul(z) / z.size(0));
    z = z.matmul(at::linalg_inv(root).t());
    x = random.normal({500, 2}, kDouble);
  }
  Ebmbb::Bracket bracket(EbmbbConfig config = {}) {
    config.volume = Volume::determinant;
    auto energy = std::make_shared<GaussianEnergy>(mean, energy_variance);
    Ebmbb method = make(config, energy, deviation * torch::eye(2, kDouble), shift);
    const auto image = method.image(z);
    return method.bracket(x, image.x, z, image, torch::ones({}, kDouble));
  }
  double negative_log_likelihood() const {
    return value((x - mean).square().sum(1).mean()) / (2 * energy_variance) + kLogTwoPi +
           std::log(energy_variance);
  }
  double energy_variance;
  double deviation = 0.8;
  torch::Tensor mean = torch::tensor({0.5, -0.3}, kDouble);
  torch::Tensor shift = torch::tensor({0.1, 0.2}, kDouble);
  torch::Tensor z, x;
};

TEST(Ebmbb, BoundsEncloseTheNegativeLogLikelihood) {
  for (const double variance : {0.2, 0.4, 0.64}) {
    KnownCase known(variance);
    const auto it = known.bracket();
    const double truth = known.negative_log_likelihood();
    EXPECT_LT(value(it.lower), truth - 0.05) << variance;
    EXPECT_GT(value(it.upper), truth - 1e-9) << variance;
    // What the lower bound lacks is KL(p_g || p).
    const double ratio = 0.64 / variance;
    const double kl = value((known.mean - known.shift).square().sum()) / (2 * variance) + ratio -
                      1 - std::log(ratio);
    EXPECT_NEAR(truth - value(it.lower), kl, 1e-9) << variance;
  }
  // Of equal covariance the upper bound is the likelihood.
  KnownCase equal(0.64);
  EXPECT_NEAR(value(equal.bracket().upper), equal.negative_log_likelihood(), 1e-9);
  // Where the generator is right, so is the lower bound.
  KnownCase right(0.64);
  right.shift = right.mean;
  EXPECT_NEAR(value(right.bracket().lower), right.negative_log_likelihood(), 1e-9);
  EXPECT_NEAR(value(right.bracket().penalty), 0, 1e-12);
}

TEST(Ebmbb, PenaltyIsAPowerOfTheSlope) {
  KnownCase known(0.64);
  // Equal covariances: the slope is the same everywhere.
  const double slope = value((known.mean - known.shift).norm()) * 0.8 / 0.64;
  EbmbbConfig config;
  for (const double power : {1.0, 2.0, 3.0}) {
    config.power = power;
    EXPECT_NEAR(value(known.bracket(config).penalty), std::pow(slope, power) / power, 1e-6);
  }
}

// The generator climbs the lower bound, the energy descends the upper one.
TEST(Ebmbb, StepGivesEachPlayerItsBound) {
  auto energy = std::make_shared<GaussianEnergy>(torch::tensor({0.5, -0.3}, kDouble), 0.7);
  const auto a = torch::tensor({{1.0, 0.4}, {-0.7, 0.9}}, kDouble);
  EbmbbConfig config;
  config.volume = Volume::determinant;
  config.gamma = 0.3;
  config.gamma_decay = 0.01;
  Ebmbb method = make(config, energy, a, torch::tensor({0.1, 0.2}, kDouble));
  Random random(torch::kCPU, 7);
  const auto x = random.normal({8, 2}, kDouble);
  random.restart(Random::kTraining, 2);
  const auto weight = method.module().named_parameters()["generator.weight0"];
  std::vector<torch::Tensor> slopes;
  method.step(x, torch::full({}, 0.5, kDouble), random,
              [&](size_t player, const torch::Tensor& loss, bool /*last*/) {
                const auto of = player == 0 ? energy->mean : weight;
                slopes.push_back(torch::autograd::grad({loss}, {of})[0]);
              });
  random.restart(Random::kTraining, 2);
  const auto z = random.normal({8, 2}, kDouble);
  const auto image = method.image(z);
  const auto it = method.bracket(x, image.x, z, image, torch::full({}, 0.03, kDouble));
  const auto upper = torch::autograd::grad({it.upper}, {energy->mean}, {}, true)[0];
  EXPECT_LE(value((slopes[0] - upper).abs().max()), 1e-12);
  const auto lower = torch::autograd::grad({it.lower}, {weight})[0];
  EXPECT_LE(value((slopes[1] + lower).abs().max()), 1e-12);
}

TEST(Ebmbb, LearnsAGaussianOfTwoScales) {
  Random random(torch::kCPU, 8);
  PlainConfig net;
  net.energy_hidden = {48, 48};
  net.generator_hidden = {48, 48};
  EbmbbConfig config;
  config.gamma = 0.1;
  config.volume = Volume::determinant;
  const auto energy = make_plain_energy(2, net);
  Ebmbb method(config, energy, make_plain_generator(2, net), 2, kDouble);
  OptimizerConfig adam;
  adam.lr = 2e-3;
  Optimizer optimizer(method, adam);
  const auto scale = torch::tensor({1.0, 0.3}, kDouble);
  const auto data = [&] { return 0.5 + scale * random.normal({200, 2}, kDouble); };
  constexpr int64_t kSteps = 300;
  std::vector<torch::Tensor> samples;
  for (int64_t i = 0; i < kSteps; ++i) {
    optimizer.set_iteration(i, kSteps);
    const auto losses = method.step(data(), torch::zeros({}, kDouble), random,
                                    [&](size_t player, const torch::Tensor& loss, bool last) {
                                      optimizer.update(player, loss, last);
                                    });
    ASSERT_TRUE(losses.isfinite().all().item<bool>()) << i;
    // The players circle around what they look for.
    if (i >= kSteps / 2 && i % 10 == 0) samples.push_back(method.sample(500, random));
  }
  const auto x = torch::cat(samples);
  const auto deviation = [&](int64_t column) { return value(x.select(1, column).std()); };
  EXPECT_NEAR(value(x.mean()), 0.5, 0.3);
  EXPECT_GT(deviation(0), 1.5 * deviation(1));
  EXPECT_GT(value(method.log_density(data()).mean()),
            value(method.log_density(4 * random.normal({200, 2}, kDouble)).mean()));
}

TEST(Ebmbb, RefusesImagesAndLatentsLargerThanTheData) {
  const auto settings = method_settings("ebmbb");
  EXPECT_THROW(settings->build({3, 32, 32}, kDouble), Error);
  EXPECT_THROW(settings->build({1}, kDouble), Error);
}

}  // namespace
}  // namespace ddaebm
