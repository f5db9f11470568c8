#include "ddaebm/nets/nice.h"

#include <cmath>

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "ddaebm/error.h"

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

TEST(Nice, AnOddNumberOfColumnsIsRefused) { EXPECT_THROW(Nice(5, 4, small(false)), Error); }

}  // namespace
}  // namespace ddaebm
