#include <cmath>
#include <functional>

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "ddaebm/ops/check.h"

namespace ddaebm::ops {
namespace {

const torch::TensorOptions kDoubles(torch::kDouble);

TEST(Ops, AgreeWithTheirPlainTwins) {
  for (const auto& result : check_all(torch::kCPU)) {
    EXPECT_TRUE(result.passed()) << result.name << ": error " << result.error << ", allowed "
                                 << result.allowed;
  }
}

// The gradient of a loss along a random direction in all `inputs` at once, by autograd and by a
// central difference.
void expect_gradient(const std::function<torch::Tensor()>& loss,
                     const std::vector<torch::Tensor>& inputs, Random& random) {
  std::vector<torch::Tensor> direction;
  for (const auto& input : inputs) direction.push_back(random.normal(input.sizes(), kDoubles));
  const auto gradients = torch::autograd::grad({loss()}, inputs);
  double ours = 0.0;
  for (size_t i = 0; i < inputs.size(); ++i) {
    ours += (gradients[i] * direction[i]).sum().item<double>();
  }
  const auto shifted = [&](double by) {
    const torch::NoGradGuard no_grad;
    for (size_t i = 0; i < inputs.size(); ++i) torch::Tensor(inputs[i]).add_(direction[i], by);
    const double value = loss().item<double>();
    for (size_t i = 0; i < inputs.size(); ++i) torch::Tensor(inputs[i]).sub_(direction[i], by);
    return value;
  };
  constexpr double kStep = 1e-7;
  const double difference = (shifted(kStep) - shifted(-kStep)) / (2.0 * kStep);
  EXPECT_NEAR(ours, difference, 1e-5 * std::max(1.0, std::abs(difference)));
}

// Twenty rows for the networks of check.h.
struct Rows {
  Random random{torch::kCPU, 7};
  torch::Tensor x = random.normal({20, 3}, kDoubles).requires_grad_();
  torch::Tensor t = random.integers(4, {20});
};
struct NetworkTest : Rows, testing::TestWithParam<NormPlace> {};
struct EnergyTest : Rows, testing::Test {};

TEST_P(NetworkTest, FirstDerivatives) {
  const auto net = random_time_mlp(random, kDoubles, 3, 2, GetParam());
  auto inputs = parameters(net);
  inputs.push_back(x);
  const auto weight = random.normal({20, 2}, kDoubles);
  expect_gradient([&] { return (time_mlp(net, x, t, true) * weight).sum(); }, inputs, random);
}

INSTANTIATE_TEST_SUITE_P(Norms, NetworkTest,
                         testing::Values(NormPlace::none, NormPlace::before_prelu,
                                         NormPlace::after_prelu));

TEST_F(EnergyTest, GradientIsThatOfTheValue) {
  const auto net = random_time_mlp(random, kDoubles, 3, 1, NormPlace::none);
  const auto [value, gradient] = time_mlp_and_gradient(net, x, t);
  const auto direction = random.normal({20, 3}, kDoubles);
  const auto ahead = time_mlp(net, x + 1e-7 * direction, t, true).squeeze(1);
  const auto behind = time_mlp(net, x - 1e-7 * direction, t, true).squeeze(1);
  EXPECT_TRUE(torch::allclose((gradient * direction).sum(1), (ahead - behind) / 2e-7, 1e-5, 1e-6));
  EXPECT_TRUE(torch::allclose(value, time_mlp(net, x, t, true).squeeze(1), 1e-12, 1e-12));
}

TEST_F(EnergyTest, SecondDerivatives) {
  const auto net = random_time_mlp(random, kDoubles, 3, 1, NormPlace::none);
  auto inputs = parameters(net);
  inputs.push_back(x);
  const auto weight = random.normal({20}, kDoubles);
  const auto loss = [&] {
    const auto [value, gradient] = time_mlp_and_gradient(net, x, t);
    return (value * weight).sum() + gradient.square().sum();
  };
  expect_gradient(loss, inputs, random);
}

// What is not wanted is not computed, and must not be asked for.
TEST_F(EnergyTest, GradientsOfSomeInputs) {
  const auto net = random_time_mlp(random, kDoubles, 3, 2, NormPlace::none);
  const auto all = parameters(net);
  const auto loss = time_mlp(net, x, t, true).square().sum();
  const auto of_x = torch::autograd::grad({loss}, {x}, {}, /*retain_graph=*/true)[0];
  const auto of_weight = torch::autograd::grad({loss}, {all[0]}, {}, /*retain_graph=*/true)[0];
  const auto both = torch::autograd::grad({loss}, {x, all[0]});
  EXPECT_TRUE(torch::equal(of_x, both[0]));
  EXPECT_TRUE(torch::equal(of_weight, both[1]));
}

TEST_F(EnergyTest, RefusesDerivativesItDoesNotHave) {
  const auto net = random_time_mlp(random, kDoubles, 3, 2, NormPlace::none);
  const auto sum = time_mlp(net, x, t, true).sum();
  EXPECT_THROW(torch::autograd::grad({sum}, {x}, {}, /*retain_graph=*/true, /*create_graph=*/true),
               c10::Error);
}

}  // namespace
}  // namespace ddaebm::ops
