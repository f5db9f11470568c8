// Two lanes of work on a CPU with two threads.

#include "ddaebm/ops/beside.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/types.h>

namespace ddaebm::ops {
namespace {

struct Lanes : testing::Test {
  void SetUp() override {
    at::set_num_threads(2);
    settle_lanes(/*processes=*/1, /*weights=*/100);
  }
  void TearDown() override { at::set_num_threads(before); }
  int before = at::get_num_threads();
};

// oneDNN shares such a convolution's gradient out among threads that wait for each other. Within a
// lane there is but one: with others in mind it would wait for ever, or be wrong.
TEST_F(Lanes, ConvolutionsInBothAreRight) {
  torch::manual_seed(0);
  const auto images = [](int64_t channels) {
    return torch::randn({2, channels, 32, 32}).contiguous(at::MemoryFormat::ChannelsLast);
  };
  const auto x = images(64);
  const auto g = images(32);
  const auto w = torch::randn({32, 64, 3, 3}).contiguous(at::MemoryFormat::ChannelsLast);
  const std::vector<int64_t> one = {1, 1};
  const std::vector<int64_t> zero = {0, 0};
  const auto gradient = [&] {
    return std::get<1>(at::convolution_backward(g, x, w, c10::nullopt, one, one, one, false, zero,
                                                1, {false, true, false}));
  };
  const auto wanted = gradient();
  torch::Tensor first;
  torch::Tensor second;
  Beside lane(torch::kCPU, Beside::Lane::first);
  lane.run([&] { first = gradient(); });
  lane.join([&] { second = gradient(); });
  EXPECT_TRUE(torch::allclose(first, wanted, 1e-4, 1e-3));
  EXPECT_TRUE(torch::equal(first, second));
  EXPECT_EQ(at::get_num_threads(), 2);  // once more
}

}  // namespace
}  // namespace ddaebm::ops
