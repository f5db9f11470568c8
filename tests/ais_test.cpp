// Normalisers that are known, estimated.

#include "ddaebm/metrics/ais.h"

#include <cmath>
#include <numbers>

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "ddaebm/diffusion/process.h"
#include "ddaebm/error.h"
#include "ddaebm/methods/ddaebm.h"
#include "ddaebm/metrics/grid.h"
#include "ddaebm/nets/nice.h"
#include "ddaebm/train/energies.h"
#include "ddaebm/train/likelihood.h"

namespace ddaebm {
namespace {

const torch::TensorOptions kDoubles(torch::kDouble);

torch::Tensor normal(at::IntArrayRef shape, uint64_t seed) {
  Random random(torch::kCPU, seed);
  return random.normal(shape, kDoubles);
}

DensityAndGradient with_gradient(std::function<torch::Tensor(const torch::Tensor&)> density) {
  return [density](const torch::Tensor& x) -> ops::ValueAndGradient {
    const torch::AutoGradMode with_gradients(true);
    const auto input = x.detach().requires_grad_();
    const auto value = density(input);
    return {value.detach(), torch::autograd::grad({value.sum()}, {input})[0].detach()};
  };
}

// Within four of its error bars, which are small; some extra where that is what rounding leaves.
void expect_log_z(const AisEstimate& found, double truth, double largest_error) {
  EXPECT_NEAR(found.log_z, truth, 4 * found.error + 1e-9);
  EXPECT_LT(found.error, largest_error);
}

// log Z of exp(3 - (x - m)' P (x - m) / 2).
TEST(Ais, FindsTheNormaliserOfAGaussian) {
  const auto root = torch::tensor({{2.0, 0.0, 0.0}, {1.5, 0.5, 0.0}, {-1.0, 0.3, 0.1}}, kDoubles);
  const auto mean = torch::tensor({5.0, -3.0, 100.0}, kDoubles);
  const auto precision = root.mm(root.t()).inverse();
  const double truth = 3 + 1.5 * std::log(2 * std::numbers::pi) + std::log(2.0 * 0.5 * 0.1);
  const auto density = with_gradient([&](const torch::Tensor& x) {
    const auto centred = x - mean;
    return 3 - 0.5 * (centred.mm(precision) * centred).sum(1);
  });
  const auto draws = mean + normal({400, 3}, 1).mm(root.t());
  // A Gaussian fitted to data from elsewhere, wider and beside it.
  const auto fit = mean + 2 * normal({400, 3}, 2) + 1;
  AisConfig config{.chains = 200, .bridges = 200};
  const auto found = annealed_importance_sampling({density}, fit, draws, config);
  expect_log_z(found.forward, truth, 0.15);
  expect_log_z(found.reverse, truth, 0.3);
  EXPECT_GT(found.forward.effective, 40);
  EXPECT_NEAR(found.acceptance, 0.8, 0.12) << "what the pilot aims at";
  // Back from where the forward chains arrived.
  const auto back = annealed_importance_sampling({density}, fit, {}, config);
  EXPECT_EQ(back.forward.log_z, found.forward.log_z);
  expect_log_z(back.reverse, truth, 0.3);
  // Fitted to its own draws there is nothing left to cross.
  const auto fitted = annealed_importance_sampling({density}, draws, draws, config);
  expect_log_z(fitted.forward, truth, 0.01);
  // A seed gives the same again.
  const auto again = annealed_importance_sampling({density}, draws, draws, config);
  EXPECT_EQ(again.forward.log_z, fitted.forward.log_z);
  EXPECT_EQ(again.reverse.log_z, fitted.reverse.log_z);
  config.seed = 1;
  EXPECT_NE(annealed_importance_sampling({density}, draws, draws, config).forward.log_z,
            fitted.forward.log_z);
}

TEST(Ais, FindsTheNormaliserOfAMixture) {
  // Three modes of deviation .1 and different weight; log Z is that of the weights, here log 6.
  const auto centres = torch::tensor({{-2.0, 0.0}, {1.0, 1.5}, {1.5, -1.0}}, kDoubles);
  const auto log_weights = torch::tensor({1.0, 2.0, 3.0}, kDoubles).log();
  const double log_norm = std::log(2 * std::numbers::pi * 0.01);
  const auto density = with_gradient([&](const torch::Tensor& x) {
    const auto squares = (x.unsqueeze(1) - centres).square().sum(2) / 0.02;
    return torch::logsumexp(log_weights - squares - log_norm, 1);
  });
  const auto which =
      torch::cat({torch::zeros({100}, torch::kLong), torch::ones({200}, torch::kLong),
                  torch::full({300}, 2, torch::kLong)});
  const auto draws = (centres.index_select(0, which) + 0.1 * normal({600, 2}, 3))
                         .index_select(0, normal({600}, 4).argsort());
  const auto found =
      annealed_importance_sampling({density}, draws, draws, {.chains = 300, .bridges = 200});
  expect_log_z(found.forward, std::log(6.0), 0.2);
  expect_log_z(found.reverse, std::log(6.0), 0.2);
}

// Both estimates are bounds on average: with bridges too few the gap opens around the truth.
TEST(Ais, ForwardAndReverseBoundTheTruth) {
  const auto density =
      with_gradient([](const torch::Tensor& x) { return -x.square().sum(1) / (2 * 0.01 * 0.01); });
  const auto draws = 0.01 * normal({50, 10}, 5);
  const auto fit = normal({50, 10}, 6);
  const double truth = 10 * (0.5 * std::log(2 * std::numbers::pi) + std::log(0.01));
  const auto found =
      annealed_importance_sampling({density}, fit, draws, {.chains = 50, .bridges = 20});
  EXPECT_LT(found.forward.log_z, truth - 1);
  EXPECT_GT(found.reverse.log_z, truth + 1);
  EXPECT_LT(found.forward.effective, 25) << "which shows that the number is not to be believed";
}

TEST(Ais, AFlowIsNormalised) {
  torch::manual_seed(3);
  Nice flow(4, 1, NiceConfig{.couplings = 4, .hidden = {16, 16}, .embedding = 0});
  flow->to(torch::kDouble);
  {
    const torch::NoGradGuard no_grad;
    flow->scale.copy_(torch::tensor({0.5, -0.7, 0.2, 1.0}, kDoubles));
  }
  const auto draws = flow->inverse(normal({300, 4}, 7)).detach();
  const auto density = with_gradient([&](const torch::Tensor& x) { return flow->log_density(x); });
  const auto found =
      annealed_importance_sampling({density}, draws, draws, {.chains = 200, .bridges = 100});
  expect_log_z(found.forward, 0, 0.05);
  expect_log_z(found.reverse, 0, 0.05);
}

TEST(Ais, RefusesWhatHasNoAnswer) {
  const auto density =
      with_gradient([](const torch::Tensor& x) { return -0.5 * x.square().sum(1); });
  const auto good = normal({20, 2}, 1);
  const AisConfig config{.chains = 10, .bridges = 5};
  const auto run = [&](const DensityAndGradient& d, const torch::Tensor& fit,
                       const torch::Tensor& ends) {
    return annealed_importance_sampling({d}, fit, ends, config);
  };
  const auto message = [&](const DensityAndGradient& d, const torch::Tensor& fit,
                           const torch::Tensor& ends) -> std::string {
    try {
      run(d, fit, ends);
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_NO_THROW(run(density, good, good));
  EXPECT_NE(message(density, good.slice(0, 0, 0), good).find("0 rows"), std::string::npos);
  EXPECT_NE(message(density, good.slice(0, 0, 1), good).find("1 rows"), std::string::npos);
  EXPECT_NE(message(density, good, good.slice(0, 0, 1)).find("reverse"), std::string::npos);
  EXPECT_NE(message(density, good / 0, good).find("not finite"), std::string::npos);
  // A constant column; a column that follows from another; the same with variances alone.
  const auto constant = torch::cat({good, torch::ones({20, 1}, kDoubles)}, 1);
  EXPECT_NE(message(density, constant, constant).find("singular"), std::string::npos);
  const auto copied = torch::cat({good, good.slice(1, 0, 1) * 3 + 1}, 1);
  EXPECT_NE(message(density, copied, copied).find("singular"), std::string::npos);
  EXPECT_NE(message(density, constant.slice(0, 0, 4), constant).find("singular"),
            std::string::npos);
  EXPECT_THROW(annealed_importance_sampling({density}, good, good, {.chains = 1}), Error);
  const auto lost = with_gradient([](const torch::Tensor& x) { return x.sum(1) * std::nan(""); });
  EXPECT_NE(message(lost, good, good).find("not finite"), std::string::npos);
}

// ---- A model ----

struct ToyModel {
  ToyModel() {
    torch::manual_seed(1);
    MlpConfig net;
    net.branch = {8, 8};
    net.trunk = {16, 16};
    GameConfig game;
    game.reference_std = 1.2;
    const Schedule schedule{ScheduleConfig{}};
    method = std::make_unique<Ddaebm>(schedule, game, make_vector_networks(2, 4, net), net.latent,
                                      std::vector<int64_t>{2}, kDoubles);
    const torch::NoGradGuard no_grad;
    // Untrained energies are flat; these have hills.
    for (auto& item : method->module().named_parameters()) {
      if (item.key().rfind("energy", 0) == 0 && item.value().dim() == 2) item.value().mul_(2.5);
    }
    units = {torch::tensor({10.0, -4.0}, kDoubles), torch::tensor({0.5, 3.0}, kDoubles)};
    model = std::make_unique<Model>(*method, units, kDoubles);
    data = units.to_data(normal({300, 2}, 11));
  }
  std::unique_ptr<Ddaebm> method;
  Units units;
  std::unique_ptr<Model> model;
  torch::Tensor data;
};

TEST(Likelihood, AgreesWithASumOverAGrid) {
  ToyModel toy;
  const Grid grid{400, -9, 9};
  const auto values = toy.method->log_density(grid.centres(kDoubles)).detach();
  EXPECT_GT(values.std().item<double>(), 1);
  const double truth = torch::logsumexp(values, 0).item<double>() + 2 * std::log(grid.cell());
  const double likelihood = toy.model->log_density(toy.data).mean().item<double>() - truth;
  for (const auto path : {AnnealingPath::straight, AnnealingPath::times}) {
    SCOPED_TRACE(path == AnnealingPath::straight ? "straight" : "times");
    const auto found =
        estimate_likelihood(*toy.model, toy.data, path, {.chains = 300, .bridges = 120});
    expect_log_z(found.normaliser.forward, truth, 0.1);
    expect_log_z(found.normaliser.reverse, truth, 0.2);
    EXPECT_NEAR(found.mean, likelihood, 4 * found.normaliser.forward.error);
    EXPECT_GT(found.error, found.normaliser.forward.error);

    ASSERT_EQ(found.energies.size(), 2U);
    const auto observed = torch::tensor(found.energies[0].values, torch::kDouble);
    const auto expected = torch::tensor(found.energies[1].values, torch::kDouble);
    EXPECT_NEAR(observed.mean().item<double>(), likelihood + truth, 1e-6);
    const auto p = values.softmax(0);
    const double mean = (p * values).sum().item<double>();
    const double spread = std::sqrt((p * (values - mean).square()).sum().item<double>());
    const double volume = std::log(0.5 * 3.0);  // of the data's units
    EXPECT_NEAR(expected.mean().item<double>(), mean - volume, 4 * spread / std::sqrt(300.0));
  }
}

TEST(ModelGradient, IsThatOfTheScore) {
  ToyModel toy;
  const auto x = toy.data.slice(0, 0, 5);
  const auto found = toy.model->log_density_and_gradient(x, 0);
  EXPECT_TRUE(torch::allclose(found.value, toy.model->log_density(x)));
  for (int64_t column = 0; column < 2; ++column) {
    auto step = torch::zeros({2}, kDoubles);
    step[column] = 1e-5;
    const auto slope = (toy.model->log_density(x + step) - toy.model->log_density(x - step)) / 2e-5;
    EXPECT_TRUE(torch::allclose(found.gradient.select(1, column), slope, 1e-5, 1e-6));
  }
}

TEST(Energies, AreOfDataMadeAgainAndOfNoise) {
  ToyModel toy;
  const auto sets = energy_sets(*toy.model, toy.units, toy.data, 5);
  ASSERT_EQ(sets.size(), 5U);
  EXPECT_EQ(sets[0].name, "real");
  EXPECT_EQ(sets[1].name, "made again");
  EXPECT_EQ(sets[4].name, "real + noise 0.5");
  const auto real = toy.model->log_density(toy.data);
  const auto change = [&](size_t i) {
    return (torch::tensor(sets[i].values, kDoubles) - real).abs().mean().item<double>();
  };
  EXPECT_EQ(change(0), 0);
  EXPECT_GT(change(2), 0);
  EXPECT_LT(change(2), change(3)) << "more noise, more change";
  EXPECT_LT(change(3), change(4));
  auto broken = toy.data.clone();
  broken[0][0] = std::nan("");
  EXPECT_THROW(energy_sets(*toy.model, toy.units, broken, 5), Error);
}

// x_1 ~ q(x_1 | x_0), then the posterior's mean around the generator's guess: by hand.
TEST(Energies, DataAreMadeAgainByOneStep) {
  ToyModel toy;
  const torch::NoGradGuard no_grad;
  toy.method->module().eval();
  const auto x0 = normal({2000, 2}, 12);
  Random random(torch::kCPU, 2);
  const auto fakes = toy.method->regenerated(x0, random);
  EXPECT_EQ(fakes.sizes(), x0.sizes());
  random.restart(Random::kInitial, 0);
  Noise noise = toy.method->draw(x0, random);
  noise.t = torch::zeros_like(noise.t);
  const auto it = toy.method->play(x0, noise, [](size_t, const torch::Tensor&, bool) {});
  EXPECT_TRUE(torch::allclose(fakes, it.fake));
  const Schedule schedule{ScheduleConfig{}};
  EXPECT_TRUE(torch::allclose(
      fakes, schedule.posterior_x0[0] * it.x0_guess + schedule.posterior_next[0] * it.x_next));
}

}  // namespace
}  // namespace ddaebm
