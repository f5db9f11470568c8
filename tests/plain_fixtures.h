#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "ddaebm/methods/plain_method.h"
#include "ddaebm/train/optimizer.h"

// What tests of methods without a diffusion share. All in float64.
namespace ddaebm::plain {

inline const torch::TensorOptions kDouble(torch::kDouble);

inline double value(const torch::Tensor& x) { return x.item<double>(); }

// Small networks, whose initial weights are the same each time.
inline PlainConfig small_net() {
  Random(torch::kCPU, 3).restart(Random::kInitial, 0);  // seeds what initial weights come from
  PlainConfig net;
  net.energy_hidden = net.generator_hidden = net.encoder_hidden = {32, 32};
  return net;
}

// E is a normalised Gaussian once `make_gaussian` was called; G is affine.
inline PlainConfig solvable_net() {
  PlainConfig net = small_net();
  net.energy = EnergyKind::nice;
  net.nice.hidden = {4};
  net.generator_hidden = {};
  return net;
}

inline void set_parameter(torch::nn::Module& network, const std::string& name,
                          const torch::Tensor& to) {
  const torch::NoGradGuard no_grad;
  network.named_parameters()[name].copy_(to);
}

// E = log N(x; 0, diag(std)^2).
inline void make_gaussian(EnergyNet& energy, const torch::Tensor& std) {
  const torch::NoGradGuard no_grad;
  for (auto& parameter : energy.parameters()) parameter.zero_();
  set_parameter(energy, "flow.scale", -std.log());
}

// Gradient of a loss in one parameter; zeros where it plays no part.
inline torch::Tensor gradient(const torch::Tensor& loss, const torch::Tensor& parameter) {
  const auto g = torch::autograd::grad({loss}, {parameter}, {}, /*retain_graph=*/true,
                                       /*create_graph=*/false, /*allow_unused=*/true)[0];
  return g.defined() ? g : torch::zeros_like(parameter);
}

inline void expect_near(const torch::Tensor& a, const torch::Tensor& b, double within) {
  ASSERT_EQ(a.sizes(), b.sizes());
  EXPECT_LE((a - b).abs().max().item<double>(), within) << a << "\n" << b;
}

// Trains on what `data` draws. `played`: players whose updates are carried out; empty: all.
inline void train(Method& method, const std::function<torch::Tensor(Random&)>& data,
                  int64_t iterations, double lr, const std::vector<size_t>& played = {}) {
  OptimizerConfig adam;
  adam.lr = lr;
  Optimizer optimizer(method, adam);
  Random random(torch::kCPU, 4);
  for (int64_t i = 0; i < iterations; ++i) {
    random.restart(Random::kTraining, static_cast<uint64_t>(i));
    optimizer.set_iteration(i, iterations);
    const auto losses = method.step(data(random), torch::zeros({}, kDouble), random,
                                    [&](size_t player, const torch::Tensor& loss, bool last) {
                                      const bool plays =
                                          played.empty() || std::find(played.begin(), played.end(),
                                                                      player) != played.end();
                                      if (plays) optimizer.update(player, loss, last);
                                    });
    ASSERT_EQ(losses.sizes(),
              torch::IntArrayRef({static_cast<int64_t>(method.loss_names().size())}));
    ASSERT_TRUE(losses.isfinite().all().item<bool>()) << "iteration " << i << "\n" << losses;
  }
}

// What a step hands to each player, and what it returns, with nothing updated.
struct Recorded {
  std::map<size_t, std::vector<torch::Tensor>> losses;  // of each update, the sum of its parts
  torch::Tensor returned;
};
inline Recorded record(Method& method, const torch::Tensor& x0, Random& random) {
  Recorded r;
  std::map<size_t, torch::Tensor> gathered;
  std::mutex recording;
  r.returned = method.step(x0, torch::zeros({}, kDouble), random,
                           [&](size_t player, const torch::Tensor& loss, bool last) {
                             const std::lock_guard lock(recording);
                             if (loss.defined()) {
                               torch::Tensor& sum = gathered[player];
                               sum = sum.defined() ? sum + loss : loss;
                             }
                             if (!last) return;
                             const auto update = gathered.extract(player);
                             ASSERT_FALSE(update.empty()) << player << " has no loss";
                             r.losses[player].push_back(update.mapped());
                           });
  for (const auto& [player, sum] : gathered) ADD_FAILURE() << player << " does not step on " << sum;
  return r;
}

// A short training on one round Gaussian: higher density there than far away, samples near it.
inline void expect_learns(Method& method, int64_t batch, int64_t iterations, double lr) {
  const auto data = [&](Random& random) { return 0.2 * random.normal({batch, 2}, kDouble) + 0.5; };
  train(method, data, iterations, lr);
  method.module().eval();
  Random random(torch::kCPU, 9);
  const auto real = data(random);
  const auto angle = torch::arange(16, kDouble) * (3.14159265358979 / 8);
  const auto far = 0.5 + 3 * torch::stack({angle.cos(), angle.sin()}, 1);
  EXPECT_GT(value(method.log_density(real).mean()), value(method.log_density(far).max()));
  const auto samples = method.sample(500, random);
  ASSERT_EQ(samples.sizes(), torch::IntArrayRef({500, 2}));
  EXPECT_LT(value((samples.mean(0) - 0.5).abs().max()), 0.3);
}

}  // namespace ddaebm::plain
