#include "ddaebm/nets/nice.h"

#include <array>
#include <cmath>

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "ddaebm/error.h"
#include "ddaebm/ops/timed_chain.h"

namespace ddaebm {
namespace {

const auto kDoubles = torch::TensorOptions(torch::kDouble);

NiceConfig small(bool timed) {
  NiceConfig config;
  config.hidden = {16, 16};
  config.embedding = timed ? 8 : 0;
  return config;
}

// With weights larger than those it begins with, and a scale that is not one.
Nice stirred(int64_t dimension, const NiceConfig& config) {
  torch::manual_seed(3);
  Nice nice(dimension, 4, config);
  const torch::NoGradGuard no_grad;
  for (auto& parameter : nice->parameters()) parameter.add_(0.3 * torch::randn_like(parameter));
  return nice;
}

TEST(Nice, InverseUndoesItAtEveryTime) {
  const auto nice = stirred(6, small(true));
  const auto x = torch::randn({8, 6}, kDoubles);
  const auto t = torch::arange(8).remainder(4);
  const auto y = nice->forward(x, t);
  EXPECT_LT((nice->inverse(y, t) - x).abs().max().item<double>(), 1e-12);
  EXPECT_GT((nice->inverse(y, (t + 1).remainder(4)) - x).abs().max().item<double>(), 1e-3)
      << "the time matters";
}

TEST(Nice, DensitySumsToOne) {
  const auto nice = stirred(2, small(true));
  constexpr double kReach = 12.0;
  constexpr int64_t kCells = 400;
  const auto axis = torch::linspace(-kReach, kReach, kCells, kDoubles);
  const auto grid = torch::stack({axis.repeat_interleave(kCells), axis.repeat({kCells})}, 1);
  const double cell = std::pow(2 * kReach / (kCells - 1), 2);
  for (const int64_t time : {0, 3}) {
    const auto t = torch::full({grid.size(0)}, time, torch::kLong);
    const double total = nice->log_density(grid, t).exp().sum().item<double>() * cell;
    EXPECT_NEAR(total, 1.0, 1e-3);
  }
}

// Layers of two widths, with and without what a time adds.
std::vector<ops::TimedDense> chain(bool timed, ops::Bend bend = ops::Bend::prelu) {
  const auto leaf = [](at::IntArrayRef shape) {
    return torch::randn(shape, kDoubles).requires_grad_();
  };
  std::vector<ops::TimedDense> layers;
  int64_t in = 5;
  for (const int64_t out : {7, 6, 3}) {
    ops::TimedDense layer;
    layer.weight = leaf({out, in});
    layer.bias = leaf({out});
    if (out != 3) {
      layer.bend = bend;
      if (bend == ops::Bend::prelu) layer.slope = leaf({1});
      if (bend != ops::Bend::prelu && timed) layer.before = leaf({4, out});
      if (bend != ops::Bend::silu && timed) layer.after = leaf({4, out});
    }
    layers.push_back(layer);
    in = out;
  }
  return layers;
}

constexpr std::array kBends = {ops::Bend::prelu, ops::Bend::softplus, ops::Bend::silu};

TEST(TimedChain, ValuesAndThreeDerivativesAreThePlainOperators) {
  torch::manual_seed(5);
  for (size_t i = 0; i < 2 * kBends.size(); ++i) {
    const bool timed = i % 2 == 0;
    const bool smooth = kBends[i / 2] != ops::Bend::prelu;
    const auto layers = chain(timed, kBends[i / 2]);
    const auto x = torch::randn({9, 5}, kDoubles).requires_grad_();
    const auto t = timed ? torch::arange(9).remainder(4) : torch::Tensor();
    const auto weight = torch::randn({9, 3}, kDoubles);
    const auto direction = torch::randn({9, 5}, kDoubles);
    std::vector<torch::Tensor> inputs = {x};
    for (const auto& l : layers) {
      for (const auto& tensor : {l.weight, l.bias, l.slope, l.after, l.before}) {
        if (tensor.defined()) inputs.push_back(tensor);
      }
    }
    // y, its gradients in all inputs, those of the gradient in x's square, with and without y in
    // the same loss, and those of the curvature along a direction.
    const auto all_of = [&](const torch::Tensor& y) {
      std::vector<torch::Tensor> found = {y};
      const auto first = torch::autograd::grad({(y * weight).sum()}, inputs, {}, true);
      found.insert(found.end(), first.begin(), first.end());
      const auto of_x = torch::autograd::grad({(y * y * weight).sum()}, {x}, {}, true, true)[0];
      const auto second =
          torch::autograd::grad({of_x.square().sum()}, inputs, {}, true, false, true);
      found.insert(found.end(), second.begin(), second.end());
      const auto slope = torch::autograd::grad({y}, {x}, {weight}, true, true)[0];
      for (const auto& loss : {slope.square().sum(), slope.square().sum() + (y * weight).sum()}) {
        const auto of_loss = torch::autograd::grad({loss}, inputs, {}, true, false, true);
        found.insert(found.end(), of_loss.begin(), of_loss.end());
      }
      if (smooth) {
        const auto loss = (slope * slope.detach()).sum();
        const auto curved = torch::autograd::grad({loss}, {x}, {}, true, true)[0];
        const auto third =
            torch::autograd::grad({(curved * direction).sum()}, inputs, {}, true, false, true);
        found.insert(found.end(), third.begin(), third.end());
      }
      return found;
    };
    const auto ours = all_of(ops::timed_chain(layers, x, t));
    const auto plain = all_of(ops::reference::timed_chain(layers, x, t));
    ASSERT_EQ(ours.size(), plain.size());
    for (size_t k = 0; k < plain.size(); ++k) {
      // What nothing depends on may be zero, or not there.
      const auto known = [&](const torch::Tensor& found, const torch::Tensor& other) {
        return found.defined() || !other.defined() ? found : torch::zeros_like(other);
      };
      const auto mine = known(ours[k], plain[k]);
      const auto theirs = known(plain[k], ours[k]);
      if (!theirs.defined()) continue;
      const double size = std::max(1.0, theirs.abs().max().item<double>());
      EXPECT_LT((mine - theirs).abs().max().item<double>(), 1e-12 * size) << i << ", " << k;
    }
  }
}

TEST(TimedChain, GradientsOfTheInputAloneOrOfTheParametersAlone) {
  torch::manual_seed(6);
  for (const auto bend : kBends) {
    const auto layers = chain(true, bend);
    const auto t = torch::arange(9).remainder(4);
    const auto x = torch::randn({9, 5}, kDoubles);
    const auto apart = [&](const torch::Tensor& input, const torch::Tensor& wanted) {
      const auto ours = ops::timed_chain(layers, input, t).sum();
      const auto plain = ops::reference::timed_chain(layers, input, t).sum();
      const auto difference =
          torch::autograd::grad({ours}, {wanted})[0] - torch::autograd::grad({plain}, {wanted})[0];
      return difference.abs().max().item<double>();
    };
    EXPECT_LT(apart(x, layers[0].weight), 1e-12);
    const auto input = x.clone().requires_grad_();
    for (const auto& l : layers) {
      for (const auto& tensor : {l.weight, l.bias, l.slope, l.after, l.before}) {
        if (tensor.defined()) tensor.requires_grad_(false);
      }
    }
    EXPECT_LT(apart(input, input), 1e-12);
  }
}

TEST(TimedChain, RefusesWhatItWouldPassOver) {
  const auto x = torch::randn({9, 5}, kDoubles);
  const auto t = torch::arange(9).remainder(4);
  auto bent_last = chain(true, ops::Bend::silu);
  bent_last.back().bend = ops::Bend::silu;
  EXPECT_THROW(ops::timed_chain(bent_last, x, t), c10::Error);
  auto before_prelu = chain(true);
  before_prelu[0].before = torch::randn({4, 7}, kDoubles);
  EXPECT_THROW(ops::timed_chain(before_prelu, x, t), c10::Error);
  auto after_all = chain(true);
  after_all.back().after = torch::randn({4, 3}, kDoubles);
  EXPECT_THROW(ops::timed_chain(after_all, x, t), c10::Error);
  auto sloping = chain(true, ops::Bend::silu);
  sloping[0].slope = torch::randn({1}, kDoubles);
  EXPECT_THROW(ops::timed_chain(sloping, x, t), c10::Error);
}

TEST(Nice, AnOddNumberOfColumnsIsRefused) { EXPECT_THROW(Nice(5, 4, small(false)), Error); }

}  // namespace
}  // namespace ddaebm
