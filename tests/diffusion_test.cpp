#include <cmath>
#include <numbers>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "ddaebm/diffusion/process.h"
#include "ddaebm/diffusion/sampler.h"
#include "ddaebm/diffusion/schedule.h"
#include "ddaebm/error.h"

namespace ddaebm {
namespace {

const torch::TensorOptions kDouble(torch::kDouble);

ScheduleConfig config_of(int64_t steps, double beta_min, double beta_max) {
  ScheduleConfig config;
  config.steps = steps;
  config.beta_min = beta_min;
  config.beta_max = beta_max;
  return config;
}

ScheduleConfig lsun() {
  auto config = config_of(4, 0.1, 20);
  config.times = TimeGrid::recovery;
  config.beta_limit = 0.999;
  return config;
}

// Times 0..T-1 in turn.
torch::Tensor times(int64_t n, int64_t steps) { return torch::arange(n, torch::kLong) % steps; }

torch::Tensor column(const std::vector<double>& values, const torch::Tensor& t, int64_t dims) {
  std::vector<int64_t> shape(static_cast<size_t>(dims), 1);
  shape[0] = t.size(0);
  return torch::tensor(values, kDouble).index_select(0, t).view(shape);
}

void expect_close(const torch::Tensor& got, const torch::Tensor& wanted, double tolerance,
                  const std::string& what) {
  ASSERT_EQ(got.sizes(), wanted.sizes()) << what;
  const double error = (got - wanted).abs().max().item<double>();
  EXPECT_LE(error, tolerance) << what;
}

// log N(x; mean, variance), summed over all but the first dimension.
torch::Tensor gaussian(const torch::Tensor& x, const torch::Tensor& mean,
                       const torch::Tensor& variance) {
  const auto each =
      -0.5 * torch::log(2 * std::numbers::pi * variance) - (x - mean) * (x - mean) / (2 * variance);
  return each.expand_as(x).reshape({x.size(0), -1}).sum(1);
}

struct Published {
  std::string name;
  ScheduleConfig config;
  std::vector<double> beta;
  double a_bar_T;
  std::vector<double> variance, c1, c2;
};

TEST(Schedule, GivesThePublishedNumbers) {
  const std::vector<Published> all = {{"CIFAR-10, CelebA",
                                       config_of(4, 0.1, 20),
                                       {1.09944e-4, .478255, .849206, .956418, .987404},
                                       .006572,
                                       {1.09931e-4, .440868, .884210, .984061},
                                       {.999825, .665736, .269176, .0578184},
                                       {1.66031e-4, .201599, .193003, .111852}},
                                      {"MNIST",
                                       config_of(4, 0.1, 10),
                                       {1.04944e-4, .285523, .614694, .792211, .887943},
                                       .080058,
                                       {1.04917e-4, .242233, .608975, .842555},
                                       {.999685, .716886, .440853, .213729},
                                       {3.10598e-4, .244612, .350405, .317639}},
                                      {"toy",
                                       config_of(4, 0.01, 0.1),
                                       {1.00449e-5, .00531269, .010881, .0164181, .0219242},
                                       .972875,
                                       {1.00261e-5, .00358708, .0082072, .0132323},
                                       {.998118, .672126, .504199, .403014},
                                       {.00188218, .327866, .495767, .596895}},
                                      {"LSUN",
                                       lsun(),
                                       {0, .252744, .568639, .750993, .999},
                                       .008959,
                                       {0, .212082, .553333, .918890},
                                       {1, .725367, .463583, .283049},
                                       {0, .244956, .367669, .0290869}}};
  const auto expect_digits = [](double got, double wanted) {
    EXPECT_NEAR(got, wanted, std::abs(wanted) * 1e-5);
  };
  for (const auto& published : all) {
    SCOPED_TRACE(published.name);
    const Schedule s(published.config);
    ASSERT_EQ(s.beta.size(), 5U);
    ASSERT_EQ(s.posterior_x0.size(), 4U);
    for (size_t k = 0; k < 5; ++k) expect_digits(s.beta[k], published.beta[k]);
    EXPECT_NEAR(s.a_bar[4], published.a_bar_T, 1e-6);
    for (size_t t = 0; t < 4; ++t) {
      expect_digits(s.posterior_variance[t], published.variance[t]);
      expect_digits(s.posterior_x0[t], published.c1[t]);
      expect_digits(s.posterior_next[t], published.c2[t]);
    }
  }
}

TEST(Schedule, HoldsItsIdentitiesForAnyNumberOfSteps) {
  for (const int64_t steps : {1, 2, 7, 1000}) {
    for (const double eps : {0.0, 1e-3}) {
      auto config = config_of(steps, 0.1, 20);
      config.time_eps = eps;
      const Schedule s(config);
      SCOPED_TRACE(std::to_string(steps) + " steps, eps " + std::to_string(eps));
      const auto n = static_cast<size_t>(steps);
      ASSERT_EQ(s.steps, steps);
      ASSERT_EQ(s.time.size(), n + 1);
      ASSERT_EQ(s.posterior_variance.size(), n);
      EXPECT_EQ(s.time.front(), eps);
      EXPECT_DOUBLE_EQ(s.time.back(), 1.0);
      // The product of all steps is the process at its end, however fine the steps.
      EXPECT_NEAR(s.a_bar.back(), std::exp(-0.5 * (0.1 + 0.5 * 19.9)), 1e-12);
      for (size_t k = 0; k <= n; ++k) {
        EXPECT_NEAR(s.a[k] * s.a[k] + s.sigma[k] * s.sigma[k], 1.0, 1e-14);
        EXPECT_NEAR(s.a_bar[k] * s.a_bar[k] + s.sigma_bar[k] * s.sigma_bar[k], 1.0, 1e-14);
        EXPECT_NEAR(s.sigma[k] * s.sigma[k], s.beta[k], 1e-15);
        if (k > 0) {
          EXPECT_GT(s.time[k], s.time[k - 1]);
          EXPECT_GT(s.beta[k], 0.0);
        }
      }
    }
  }
}

TEST(Schedule, OneCleanStepGivesBackX0) {
  auto config = config_of(1, 0.1, 20);
  config.time_eps = 0;
  const Schedule s(config);
  EXPECT_DOUBLE_EQ(s.posterior_x0[0], 1.0);
  EXPECT_EQ(s.posterior_next[0], 0.0);
  EXPECT_EQ(s.posterior_variance[0], 0.0);
}

TEST(Schedule, RecoveryTimesStandOnAGridOf999) {
  const Schedule four(lsun());
  for (size_t k = 0; k < 5; ++k) {
    EXPECT_DOUBLE_EQ(four.time[k], std::vector<double>({0, 166, 332, 498, 999})[k] / 999.0);
  }
  auto config = lsun();
  config.steps = 1;
  EXPECT_EQ(Schedule(config).time, (std::vector<double>{0, 1}));
  config.steps = 6;
  EXPECT_DOUBLE_EQ(Schedule(config).time[5], 500.0 / 999.0);
}

TEST(Schedule, FloorsTheVarianceOfTheNoiseAlone) {
  auto config = lsun();
  config.posterior_variance_floor = 0.3;
  const Schedule s(config);
  EXPECT_EQ(s.posterior_variance[0], 0.0);
  EXPECT_DOUBLE_EQ(s.posterior_log_variance[0], std::log(0.3));
  EXPECT_DOUBLE_EQ(s.posterior_log_variance[1], std::log(0.3));
  EXPECT_DOUBLE_EQ(s.posterior_log_variance[2], std::log(s.posterior_variance[2]));
}

TEST(Schedule, RefusesRatesThatMakeNoProcess) {
  try {
    const Schedule s(config_of(4, 5.0, 1.0));
    FAIL() << "beta_max below beta_min";
  } catch (const Error& error) {
    const std::string what = error.what();
    EXPECT_NE(what.find("diffusion.beta_max is 1"), std::string::npos) << what;
    EXPECT_NE(what.find("diffusion.beta_min, 5"), std::string::npos) << what;
  }
  EXPECT_NO_THROW(Schedule(config_of(4, 5.0, 5.0)));
  auto config = lsun();
  config.steps = 1000;  // the recovery grid has room for 501
  EXPECT_THROW(Schedule{config}, Error);
  config = config_of(4, 0.1, 20);
  config.beta_limit = 0;
  EXPECT_THROW(Schedule{config}, Error);
}

// As sampling begins with noise alone, so may the process end.
TEST(Schedule, TheLastStepMayForgetX0) {
  auto config = config_of(4, 0.1, 2.5);
  const Schedule kept(config);
  config.forget = true;
  const Schedule forgot(config);
  for (size_t t = 0; t < 4; ++t) EXPECT_EQ(forgot.a_bar[t], kept.a_bar[t]) << t;
  EXPECT_GT(kept.a_bar[4], 0.5);
  EXPECT_EQ(forgot.a_bar[4], 0);
  EXPECT_EQ(forgot.sigma_bar[4], 1);
  // x_3 from x_0 alone: q(x_3 | x_4, x_0) = q(x_3 | x_0).
  EXPECT_EQ(forgot.posterior_next[3], 0);
  EXPECT_DOUBLE_EQ(forgot.posterior_x0[3], forgot.a_bar[3]);
  EXPECT_DOUBLE_EQ(std::sqrt(forgot.posterior_variance[3]), forgot.sigma_bar[3]);
}

TEST(Schedule, StaysFiniteWhereNothingOfX0IsLeft) {
  const Schedule s(config_of(4, 0.1, 10000));
  for (const auto* values : {&s.beta, &s.a, &s.sigma, &s.a_bar, &s.sigma_bar, &s.posterior_x0,
                             &s.posterior_next, &s.posterior_variance}) {
    for (const double value : *values) EXPECT_TRUE(std::isfinite(value));
  }
  EXPECT_EQ(s.beta[4], 1.0);
}

TEST(Schedule, ImportanceIsWAtTheEndAndWMidInTheMiddle) {
  auto config = config_of(2, 0.1, 20);
  config.time_eps = 0;
  const auto lambda = Schedule(config).importance(0.7, 0.1);
  ASSERT_EQ(lambda.size(), 3U);
  EXPECT_DOUBLE_EQ(lambda[0], 0.0);
  EXPECT_DOUBLE_EQ(lambda[1], 0.1);
  EXPECT_DOUBLE_EQ(lambda[2], 0.7);
  const auto published = Schedule(lsun()).importance(0.6, 0.2);
  for (size_t t = 0; t < 4; ++t) {
    EXPECT_NEAR(published[t + 1], std::vector<double>({.0349, .1047, .1990, .6})[t], 6e-5);
  }
  for (const double one : Schedule(lsun()).importance(1, 1)) EXPECT_EQ(one, 1.0);
}

TEST(Process, ForwardPairsHaveTheMomentsOfTheSchedule) {
  const Schedule s(config_of(3, 0.1, 8));
  const Process process(s, kDouble);
  EXPECT_EQ(process.steps(), 3);
  Random random(torch::kCPU, 7);
  constexpr int64_t kPoints = 100000;
  const auto x0 = torch::tensor({1.5, -0.5}, kDouble).expand({kPoints, 2});
  for (int64_t k = 0; k < 3; ++k) {
    const auto i = static_cast<size_t>(k);
    const auto at = process.at(torch::full({kPoints}, k, torch::kLong), 2);
    const auto x_t = at.diffuse(x0, random.normal({kPoints, 2}, kDouble));
    const auto x_next = at.advance(x_t, random.normal({kPoints, 2}, kDouble));
    const double noise = s.sigma_bar[i] * s.sigma_bar[i];
    const auto centred = x_t - x_t.mean(0);
    const auto centred_next = x_next - x_next.mean(0);
    const auto ones = torch::ones({2}, kDouble);
    expect_close(x_t.mean(0), s.a_bar[i] * x0[0], 0.012, "mean of x_t");
    expect_close(centred.square().mean(0), noise * ones, 0.025 * noise, "variance of x_t");
    expect_close(x_next.mean(0), s.a_bar[i + 1] * x0[0], 0.02, "mean of x_{t+1}");
    expect_close(centred_next.square().mean(0), (1 - s.a_bar[i + 1] * s.a_bar[i + 1]) * ones, 0.02,
                 "variance of x_{t+1}");
    expect_close((centred * centred_next).mean(0), s.a[i + 1] * noise * ones, 0.02, "covariance");
  }
}

TEST(Process, DiffusesAndAdvancesRowByRowExactly) {
  const Schedule s(config_of(4, 0.1, 20));
  const auto t = torch::tensor({3, 0}, torch::kLong);
  const auto at = Process(s, kDouble).at(t, 2);
  const auto x = torch::tensor({{2.0}, {-1.0}}, kDouble);
  const auto eps = torch::tensor({{0.5}, {3.0}}, kDouble);
  expect_close(
      at.diffuse(x, eps),
      torch::tensor({{2 * s.a_bar[3] + 0.5 * s.sigma_bar[3]}, {-s.a_bar[0] + 3 * s.sigma_bar[0]}},
                    kDouble),
      1e-15, "x_t");
  expect_close(
      at.advance(x, eps),
      torch::tensor({{2 * s.a[4] + 0.5 * s.sigma[4]}, {-s.a[1] + 3 * s.sigma[1]}}, kDouble), 1e-15,
      "x_{t+1}");
}

// The rest holds for vectors and for images alike.
class ProcessOfShape : public ::testing::TestWithParam<std::vector<int64_t>> {};
INSTANTIATE_TEST_SUITE_P(Shapes, ProcessOfShape,
                         ::testing::Values(std::vector<int64_t>{12, 3}, std::vector<int64_t>{12, 1},
                                           std::vector<int64_t>{12, 2, 3, 4}));

TEST_P(ProcessOfShape, LogQIsTheGaussianAndItsGradientAutogradsOwn) {
  const auto& shape = GetParam();
  const auto dims = static_cast<int64_t>(shape.size());
  const Schedule s(config_of(5, 0.1, 12));
  const auto t = times(shape[0], 5);
  const auto at = Process(s, kDouble).at(t, dims);
  Random random(torch::kCPU, 3);
  const auto x_t = random.normal(shape, kDouble).requires_grad_();
  const auto x_next = random.normal(shape, kDouble);
  const auto a = column(s.a, t + 1, dims);
  const auto beta = column(s.beta, t + 1, dims);
  const auto log_q = at.log_q(x_next, x_t);
  expect_close(log_q, gaussian(x_next, a * x_t, beta), 1e-11, "log q");
  const auto gradient = torch::autograd::grad({log_q.sum()}, {x_t})[0];
  expect_close(at.grad_log_q(x_next, x_t.detach()), gradient, 1e-10, "gradient");
}

TEST_P(ProcessOfShape, PosteriorIsBayesRule) {
  const auto& shape = GetParam();
  const auto dims = static_cast<int64_t>(shape.size());
  Random random(torch::kCPU, 11);
  for (int trial = 0; trial < 20; ++trial) {
    const auto draw = random.uniform({4}, kDouble);
    const auto steps = static_cast<int64_t>(1 + std::floor(9 * draw[0].item<double>()));
    const double beta_min = 0.01 + draw[1].item<double>();
    auto config = config_of(steps, beta_min, beta_min + 20 * draw[2].item<double>());
    config.time_eps = 1e-3 + 0.1 * draw[3].item<double>();
    const Schedule s(config);
    const auto t = times(shape[0], steps);
    const auto at = Process(s, kDouble).at(t, dims);
    const auto x0 = random.normal(shape, kDouble);
    const auto x_next = random.normal(shape, kDouble);
    const auto x_t = random.normal(shape, kDouble);

    // q(x_t | x_0) q(x_{t+1} | x_t) as a function of x_t: precisions add.
    const auto a = column(s.a, t + 1, dims);
    const auto noise = column(s.beta, t + 1, dims);
    const auto a_bar = column(s.a_bar, t, dims);
    const auto noise_bar = column(s.sigma_bar, t, dims).square();
    const auto precision = 1 / noise_bar + a * a / noise;
    const auto mean = (a_bar * x0 / noise_bar + a * x_next / noise) / precision;
    SCOPED_TRACE(std::to_string(steps) + " steps");
    expect_close(at.posterior_mean(x0, x_next), mean, 1e-10, "mean");
    const auto variance = torch::tensor(s.posterior_variance, kDouble).index_select(0, t);
    expect_close(variance, (1 / precision).reshape({-1}), 1e-12, "variance");
    const auto log_density = at.posterior_log_density(x_t, x0, x_next);
    const auto wanted = gaussian(x_t, mean, 1 / precision);
    EXPECT_LE(((log_density - wanted) / wanted).abs().max().item<double>(), 1e-9);

    const auto eps = random.normal(shape, kDouble);
    expect_close(at.posterior_sample(x0, x_next, eps, true), mean + precision.rsqrt() * eps, 1e-10,
                 "a sample");
    std::vector<int64_t> rows(static_cast<size_t>(dims), 1);
    rows[0] = shape[0];
    const auto noisy = t.gt(0).view(rows).to(torch::kDouble);
    expect_close(at.posterior_sample(x0, x_next, eps, false),
                 mean + noisy * precision.rsqrt() * eps, 1e-10, "a sample, silent at t = 0");
  }
}

TEST_P(ProcessOfShape, AFloorRaisesSmallVariancesOnly) {
  const auto& shape = GetParam();
  const auto dims = static_cast<int64_t>(shape.size());
  const Schedule s(config_of(4, 0.1, 20));
  const auto t = times(shape[0], 4);
  Random random(torch::kCPU, 5);
  const auto x0 = random.normal(shape, kDouble);
  const auto x_next = random.normal(shape, kDouble);
  const auto x_t = random.normal(shape, kDouble);
  for (const double floor : {0.01, 0.5, 2.0}) {
    std::vector<double> variance;
    for (const double v : s.posterior_variance) variance.push_back(std::max(v, floor));
    const auto at = Process(s, kDouble, floor).at(t, dims);
    expect_close(at.posterior_log_density(x_t, x0, x_next),
                 gaussian(x_t, at.posterior_mean(x0, x_next), column(variance, t, dims)), 1e-9,
                 "floor " + std::to_string(floor));
  }
}

TEST_P(ProcessOfShape, TheReferenceIsADiffusedGaussianUpToItsConstant) {
  const auto& shape = GetParam();
  const auto dims = static_cast<int64_t>(shape.size());
  const Schedule s(config_of(4, 0.1, 20));
  const auto t = times(shape[0], 4);
  const auto at = Process(s, kDouble).at(t, dims);
  Random random(torch::kCPU, 5);
  const auto x = random.normal(shape, kDouble);
  const auto y = random.normal(shape, kDouble);
  const double deviation = 1.7;
  const auto variance =
      (column(s.a_bar, t, dims) * deviation).square() + column(s.sigma_bar, t, dims).square();
  const auto zero = torch::zeros_like(x);
  expect_close(at.log_gaussian(x, deviation) - at.log_gaussian(y, deviation),
               gaussian(x, zero, variance) - gaussian(y, zero, variance), 1e-10, "difference");
  expect_close(at.log_gaussian(zero, deviation), torch::zeros({shape[0]}, kDouble), 0.0, "peak");
}

TEST(Process, SumsOverTheEvent) {
  const auto x = torch::arange(24, torch::kDouble).view({2, 3, 4});
  expect_close(sum_event(x), torch::tensor({66.0, 210.0}, kDouble), 0.0, "[N, ...]");
  expect_close(sum_event(x.select(2, 0)), torch::tensor({12.0, 48.0}, kDouble), 0.0, "[N, D]");
}

// With the perfect denoiser of a point mass.
TEST(Sampler, EndsAtThePointForAnyNumberOfSteps) {
  for (const int64_t steps : {1, 2, 7, 50}) {
    auto config = config_of(steps, 0.1, 20);
    config.time_eps = 0;  // x_0 is clean
    const Process process(Schedule(config), kDouble);
    Random random(torch::kCPU, 1);
    const auto point = torch::tensor({0.25, -3.0, 1.0}, kDouble).expand({6, 3});
    std::vector<int64_t> asked;
    const Denoiser perfect = [&](const torch::Tensor& x_next, const torch::Tensor& t) {
      EXPECT_EQ(x_next.sizes(), point.sizes());
      EXPECT_TRUE((t == t[0]).all().item<bool>());
      asked.push_back(t[0].item<int64_t>());
      return point;
    };
    const auto start = random.normal({6, 3}, kDouble);
    const auto path = sample_path(process, perfect, start, false, random);
    ASSERT_EQ(path.size(), static_cast<size_t>(steps) + 1);
    expect_close(path.front(), start, 0.0, "x_T");
    expect_close(path.back(), point, 1e-12, "x_0");
    ASSERT_EQ(asked.size(), static_cast<size_t>(steps));
    for (int64_t k = 0; k < steps; ++k) {
      EXPECT_EQ(asked[static_cast<size_t>(k)], steps - 1 - k) << "order of the times";
    }
  }
}

TEST(Sampler, EveryXtHasTheForwardProcesssMarginal) {
  const Schedule s(config_of(4, 0.1, 6));
  const Process process(s, kDouble);
  Random random(torch::kCPU, 2);
  constexpr int64_t kPoints = 100000;
  const double point = 2.0;
  const auto x0 = torch::full({kPoints, 1}, point, kDouble);
  const auto start = s.a_bar[4] * x0 + s.sigma_bar[4] * random.normal({kPoints, 1}, kDouble);
  const Denoiser perfect = [&](const torch::Tensor&, const torch::Tensor&) { return x0; };
  const auto path = sample_path(process, perfect, start, true, random);
  for (size_t k = 0; k < 5; ++k) {
    const auto& x = path[4 - k];
    EXPECT_NEAR(x.mean().item<double>(), s.a_bar[k] * point, 5 * s.sigma_bar[k] / 316.0);
    EXPECT_NEAR(x.std().item<double>() / s.sigma_bar[k], 1.0, 0.012) << "x_" << k;
  }
}

TEST(Sampler, RowsAreChosenAsOftenAsTheirWeightsSay) {
  Random random(torch::kCPU, 4);
  const auto weights = torch::tensor({1.0, 0.0, 3.0, 2.0, 4.0}, kDouble);
  for (const int64_t n : {1, 7, 1000}) {
    const auto rows = choose_rows(weights.log() - 700, n, random);
    ASSERT_EQ(rows.sizes(), torch::IntArrayRef({n}));
    const auto wanted = weights * static_cast<double>(n) / 10.0;
    const auto found = torch::bincount(rows, {}, weights.size(0)).to(torch::kDouble);
    EXPECT_LT((found - wanted).abs().max().item<double>(), 1.0) << n;
  }
}

TEST(Sampler, TakesImages) {
  const Process process(Schedule(config_of(3, 0.1, 20)), torch::TensorOptions(torch::kFloat));
  Random random(torch::kCPU, 2);
  const Denoiser zero = [](const torch::Tensor& x, const torch::Tensor&) { return x * 0; };
  const auto start = random.normal({2, 3, 4, 5}, torch::kFloat);
  const auto path = sample_path(process, zero, start, false, random);
  ASSERT_EQ(path.size(), 4U);
  EXPECT_EQ(path.back().sizes(), start.sizes());
  EXPECT_LT(path.back().abs().max().item<double>(), 0.05);
}

}  // namespace
}  // namespace ddaebm
