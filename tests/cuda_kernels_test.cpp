// The GPU's kernels, run thread by thread on the CPU (cuda_emulation), against the CPU's own: what
// they compute is right before a GPU has seen them.

#include <ostream>

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/types.h>

#include "ddaebm/ops/adam.h"
#include "ddaebm/ops/branches.h"
#include "ddaebm/ops/cuda/launchers.h"
#include "ddaebm/ops/dense_kernels.h"
#include "ddaebm/ops/image_kernels.h"
#include "ddaebm/ops/resample.h"
#include "ddaebm/ops/row_sums.h"
#include "ddaebm/ops/waves.h"

namespace ddaebm::ops {
namespace {

using torch::Tensor;

Tensor channels_last(const Tensor& x) { return x.contiguous(at::MemoryFormat::ChannelsLast); }

cuda::Type type_of(const Tensor& x) {
  if (x.scalar_type() == torch::kBFloat16) return cuda::Type::bfloat16;
  return x.scalar_type() == torch::kDouble ? cuda::Type::float64 : cuda::Type::float32;
}

// Relative to the largest entry, or to `scale` where that is larger.
void expect_close(const Tensor& found, const Tensor& expected, double allowed, const char* what,
                  double scale = 1e-30) {
  const auto a = found.to(torch::kDouble);
  const auto b = expected.to(torch::kDouble);
  ASSERT_EQ(a.sizes(), b.sizes()) << what;
  const double size = std::max(b.abs().max().item<double>(), scale);
  EXPECT_LE((a - b).abs().max().item<double>(), allowed * size) << what;
}

// How many rows the bias table has, and how long the rows of a are where a kernel makes its matrix,
// a b; with 0 the matrix is given.
struct DenseCase {
  int64_t table_rows, inner;
  bool along_columns;  // whether b's columns lie side by side in memory, or its rows
};

class DenseKernels : public testing::TestWithParam<DenseCase> {
 protected:
  DenseKernels() {
    torch::manual_seed(3);
    table = randn({GetParam().table_rows, kColumns});
    if (table.size(0) > 1) rows = torch::randint(table.size(0), {kRows}, torch::kLong);
  }
  static Tensor randn(at::IntArrayRef shape) { return torch::randn(shape, torch::kDouble); }
  static Tensor matrix() { return randn({kRows, kColumns}); }

  // A matrix as the CPU is given it, and where a kernel finds or makes it.
  struct Given {
    kernels::Matrix plain;
    Tensor at;
    cuda::Dense dense;
  };
  Given given() const {
    Given made;
    const int64_t inner = GetParam().inner;
    if (inner == 0) {
      made.at = matrix();
      made.plain = {made.at.clone(), {}};
    } else {
      made.plain.a = randn({kRows, inner + 4}).slice(1, 0, inner);
      made.plain.b = GetParam().along_columns ? randn({inner, kColumns})
                                              : randn({kColumns, inner + 3}).slice(1, 3).t();
      made.at = torch::full({kRows, kColumns}, std::nan(""), torch::kDouble);
    }
    made.dense = {cuda::Type::float64,
                  kRows,
                  kColumns,
                  table.data_ptr(),
                  table.size(0),
                  rows.defined() ? rows.data_ptr<int64_t>() : nullptr,
                  {}};
    if (inner > 0) {
      const Tensor& a = made.plain.a;
      const Tensor& b = made.plain.b;
      made.dense.product = {a.data_ptr(), b.data_ptr(), static_cast<int>(inner), a.stride(0),
                            b.stride(0),  b.stride(1),  inner % 4 == 0};
    }
    return made;
  }
  static Tensor block_sums() {
    return torch::empty({cuda::dense_blocks(kColumns, GetParam().inner > 0)}, torch::kDouble);
  }

  static constexpr int64_t kRows = 153;
  static constexpr int64_t kColumns = 37;
  static constexpr double kAllowed = 1e-12;
  Tensor table, rows;
  Tensor slope = torch::full({1}, 0.23, torch::kDouble);
};

TEST_P(DenseKernels, BiasAndPrelu) {
  const Given h = given();
  auto y = torch::empty_like(h.at);
  cuda::bias_prelu(h.dense, h.at.data_ptr(), slope.data_ptr(), {}, y.data_ptr(), nullptr);
  const auto plain = kernels::bias_prelu(h.plain, table, rows, slope);
  expect_close(y, plain.y, kAllowed, "y");
  expect_close(h.at, plain.h, kAllowed, "h");

  const Given bare = given();
  cuda::bias_prelu(bare.dense, bare.at.data_ptr(), nullptr, {}, nullptr, nullptr);
  expect_close(bare.at, kernels::add_bias(bare.plain, table, rows), kAllowed, "without a PReLU");

  const auto after = randn({3, kColumns});
  const auto after_rows = torch::randint(3, {kRows}, torch::kLong);
  const Given again = given();
  cuda::bias_prelu(again.dense, again.at.data_ptr(), slope.data_ptr(),
                   {after.data_ptr(), after_rows.data_ptr<int64_t>()}, y.data_ptr(), nullptr);
  const auto more = kernels::bias_prelu(again.plain, table, rows, slope, after, after_rows);
  expect_close(y, more.y, kAllowed, "with rows added");
  expect_close(again.at, more.h, kAllowed, "h before them");
}

TEST_P(DenseKernels, SmoothBends) {
  for (const auto& [timed, bend] : {std::pair{false, Bend::silu},
                                    {true, Bend::silu},
                                    {false, Bend::softplus},
                                    {true, Bend::softplus}}) {
    Given h = given();
    h.dense.table_rows = 1;  // the bias is one for all rows
    h.dense.table_row_of = nullptr;
    const auto bias = table[0];
    const auto before = timed ? randn({3, kColumns}) : Tensor();
    const auto of_row = torch::randint(3, {kRows}, torch::kLong);
    cuda::AddedRows added;
    if (timed) added = {before.data_ptr(), of_row.data_ptr<int64_t>()};
    auto y = torch::empty_like(h.at);
    cuda::bias_bend(h.dense, h.at.data_ptr(), added, bend, y.data_ptr(), nullptr);
    const auto plain = kernels::bias_bend(h.plain, bias, before, of_row, bend);
    expect_close(y, plain.y, kAllowed, "y");
    expect_close(h.at, plain.h, kAllowed, "h");
  }
  for (const auto bend : {Bend::silu, Bend::softplus}) {
    const auto h = matrix();
    auto gh = torch::empty_like(h);
    for (const auto& more : {Tensor(), matrix()}) {
      const Given g = given();
      cuda::bend_backward(g.dense, g.at.data_ptr(), h.data_ptr(), bend,
                          more.defined() ? more.data_ptr() : nullptr, gh.data_ptr(), nullptr);
      expect_close(gh, kernels::bend_backward(g.plain, h, bend, more), kAllowed, "gh");
    }
    const auto gy = matrix();
    const Given u = given();
    auto of_gy = torch::empty_like(h);
    cuda::bend_backward_twice(u.dense, u.at.data_ptr(), gy.data_ptr(), h.data_ptr(), bend,
                              of_gy.data_ptr(), gh.data_ptr(), nullptr);
    const auto twice = kernels::bend_backward_twice(u.plain, gy, h, bend);
    expect_close(of_gy, twice.of_gy, kAllowed, "that of gy");
    expect_close(gh, twice.of_h, kAllowed, "that of h");
  }
}

TEST(WaveKernels, AreTheFormulaAndItsGradient) {
  torch::manual_seed(8);
  const auto x = torch::randn({61, 5}, torch::kDouble).requires_grad_();
  const auto frequencies = torch::tensor({1.0, 2.0, 4.0}, torch::kDouble);
  const auto plain = reference::waves(x, frequencies);
  const cuda::Waves of = {cuda::Type::float64, 61, 5, 3, frequencies.data_ptr()};
  auto y = torch::empty_like(plain);
  cuda::waves(of, x.data_ptr(), y.data_ptr(), nullptr);
  expect_close(y, plain, 1e-14, "y");
  const auto gy = torch::randn({61, 35}, torch::kDouble);
  auto gx = torch::empty({61, 5}, torch::kDouble);
  cuda::waves_backward(of, gy.data_ptr(), y.data_ptr(), gx.data_ptr(), nullptr);
  expect_close(gx, torch::autograd::grad({plain}, {x}, {gy})[0], 1e-13, "gx");
}

TEST_P(DenseKernels, BiasAndPreluBackward) {
  const auto h = matrix();
  auto gh = torch::empty_like(h);
  const Given alone = given();
  cuda::prelu_backward(alone.dense, alone.at.data_ptr(), h.data_ptr(), slope.data_ptr(),
                       gh.data_ptr(), nullptr);
  expect_close(gh, kernels::prelu_backward(alone.plain, h, slope), kAllowed, "gh alone");

  const Given g = given();
  auto g_table = torch::empty_like(table);
  auto g_slope = block_sums();
  cuda::bias_prelu_backward(g.dense, g.at.data_ptr(), h.data_ptr(), slope.data_ptr(), gh.data_ptr(),
                            g_table.data_ptr(), g_slope.data_ptr(), nullptr);
  const auto plain = kernels::bias_prelu_backward(g.plain, h, slope, rows, table.size(0));
  expect_close(gh, plain.h, kAllowed, "gh");
  expect_close(g_table, plain.table, kAllowed, "table");
  expect_close(g_slope.sum(0, true), plain.slope, kAllowed, "slope");

  const Given bare = given();
  cuda::bias_prelu_backward(bare.dense, bare.at.data_ptr(), nullptr, nullptr, nullptr,
                            g_table.data_ptr(), nullptr, nullptr);
  const auto linear = kernels::bias_prelu_backward(bare.plain, {}, {}, rows, table.size(0));
  expect_close(bare.at, linear.h, kAllowed, "g without a PReLU");
  expect_close(g_table, linear.table, kAllowed, "its table");
}

TEST_P(DenseKernels, Tangent) {
  const auto h = matrix();
  const auto dy = matrix();
  const auto weight = randn({kRows});
  for (const bool bent : {true, false}) {
    const Given u = given();
    auto g_table = torch::empty_like(table);
    auto g_slope = block_sums();
    cuda::bias_prelu_tangent(u.dense, u.at.data_ptr(), weight.data_ptr(),
                             bent ? h.data_ptr() : nullptr, bent ? slope.data_ptr() : nullptr,
                             dy.data_ptr(), g_table.data_ptr(), bent ? g_slope.data_ptr() : nullptr,
                             nullptr);
    const auto plain =
        kernels::bias_prelu_tangent(u.plain, weight, table, rows, h, bent ? slope : Tensor(), dy);
    expect_close(u.at, plain.h, kAllowed, "u");
    expect_close(g_table, plain.table, kAllowed, "table");
    if (bent) expect_close(g_slope.sum(0, true), plain.slope, kAllowed, "slope");
  }
}

TEST_P(DenseKernels, BatchNorm) {
  for (const bool bent : {true, false}) {
    const auto* of_slope = bent ? slope.data_ptr() : nullptr;
    const auto plain_slope = bent ? slope : Tensor();
    Given h = given();
    // Without a PReLU there is no bias either: what is normalised comes from one.
    if (!bent) h.dense.table = nullptr;
    auto y = torch::empty_like(h.at);
    kernels::NormParts norm{randn({kColumns}),
                            randn({kColumns}),
                            randn({kColumns}),
                            torch::rand({kColumns}, torch::kDouble),
                            0.1,
                            1e-5};
    auto plain_norm = norm;
    plain_norm.running_mean = norm.running_mean.clone();
    plain_norm.running_variance = norm.running_variance.clone();
    auto inverse = torch::empty({kColumns}, torch::kDouble);
    const cuda::BatchNorm description{norm.scale.data_ptr(),
                                      norm.shift.data_ptr(),
                                      norm.running_mean.data_ptr(),
                                      norm.running_variance.data_ptr(),
                                      norm.momentum,
                                      norm.eps};
    cuda::bias_norm_prelu(h.dense, description, h.at.data_ptr(), of_slope, y.data_ptr(),
                          inverse.data_ptr(), nullptr);
    const auto forward =
        kernels::bias_norm_prelu(h.plain, bent ? table : Tensor(), rows, plain_norm, plain_slope);
    expect_close(y, forward.y, kAllowed, "y");
    expect_close(h.at, forward.h, kAllowed, "h");
    expect_close(inverse, forward.inverse, kAllowed, "inverse");
    expect_close(norm.running_mean, plain_norm.running_mean, kAllowed, "running mean");
    expect_close(norm.running_variance, plain_norm.running_variance, kAllowed, "running variance");

    const Given g = given();
    auto gh = torch::empty_like(h.at);
    auto g_scale = torch::empty({kColumns}, torch::kDouble);
    auto g_shift = torch::empty({kColumns}, torch::kDouble);
    auto g_table = torch::empty_like(table);
    auto g_slope = block_sums();
    cuda::norm_prelu_backward(g.dense, description, g.at.data_ptr(), h.at.data_ptr(),
                              inverse.data_ptr(), of_slope, gh.data_ptr(), g_scale.data_ptr(),
                              g_shift.data_ptr(), bent ? g_slope.data_ptr() : nullptr,
                              g_table.data_ptr(), nullptr);
    const auto plain = kernels::norm_prelu_backward(g.plain, h.at, inverse, norm.scale, norm.shift,
                                                    plain_slope, rows, table.size(0));
    expect_close(gh, plain.h, kAllowed, "gh");
    expect_close(g_scale, plain.scale, kAllowed, "scale");
    expect_close(g_shift, plain.shift, kAllowed, "shift");
    if (bent) expect_close(g_slope.sum(0, true), plain.slope, kAllowed, "slope");
    expect_close(g_table, plain.table, 1e-10, "table");
  }
}

INSTANTIATE_TEST_SUITE_P(Tables, DenseKernels,
                         testing::Values(DenseCase{1, 0, false}, DenseCase{6, 0, false},
                                         DenseCase{1, 3, false}, DenseCase{6, 40, false},
                                         DenseCase{6, 41, true}, DenseCase{1, 12, true}));

struct NormCase {
  torch::ScalarType type;
  int64_t width, groups, height, columns;  // width: channels a group
  bool add, silu;
};

void PrintTo(const NormCase& c, std::ostream* out) {
  *out << c.type << ", " << c.groups << " groups of " << c.width << ", " << c.height << "x"
       << c.columns << (c.add ? ", of a sum" : "") << (c.silu ? ", silu" : "");
}

class GroupNormKernels : public testing::TestWithParam<NormCase> {};

TEST_P(GroupNormKernels, AgreeWithTheCpus) {
  torch::manual_seed(4);
  const NormCase& c = GetParam();
  const int64_t channels = c.width * c.groups;
  const bool half = c.type == torch::kBFloat16;
  const auto wide = c.type == torch::kDouble ? torch::kDouble : torch::kFloat;
  const double allowed = half ? 0.03 : wide == torch::kDouble ? 1e-11 : 1e-4;
  const auto image = [&] {
    return channels_last(torch::randn({2, channels, c.height, c.columns}, wide)).to(c.type);
  };
  const auto values = [&] { return torch::randn({2, channels}, wide); };
  const auto x = (image() + 0.7).to(c.type);
  const auto scale = values();
  const auto shift = values();
  const auto add = values();
  auto mean = torch::empty({2, c.groups}, wide);
  auto inverse = torch::empty_like(mean);
  const cuda::GroupNorm norm{type_of(x),
                             2,
                             c.height * c.columns,
                             channels,
                             c.groups,
                             c.silu,
                             1e-6,
                             x.data_ptr(),
                             {scale.data_ptr(), channels},
                             {shift.data_ptr(), channels},
                             {c.add ? add.data_ptr() : nullptr, channels},
                             0,
                             1.0,
                             nullptr,
                             0,
                             mean.data_ptr(),
                             inverse.data_ptr()};
  const GroupNormConfig config{c.groups, c.silu, 1e-6};
  const auto exact = x.to(wide);
  kernels::GroupNormParts parts{
      c.add ? exact + add.unsqueeze(2).unsqueeze(3) : exact, scale, shift, {}, {}, {}, {}};
  auto y = torch::empty_like(x);
  cuda::group_norm_forward(norm, y.data_ptr(), nullptr);
  expect_close(y, kernels::group_norm_forward(parts, config), allowed, "y");
  expect_close(mean, parts.mean, allowed, "mean");
  expect_close(inverse, parts.inverse, allowed, "inverse");

  const auto over_pixels = [](const Tensor& g) { return g.sum(at::IntArrayRef({2, 3})); };
  const auto gy = image();
  auto gx = torch::empty_like(x);
  auto of_channels = torch::zeros({3, 2, channels}, wide);
  cuda::group_norm_backward(norm, gy.data_ptr(), nullptr, gx.data_ptr(), nullptr, nullptr);
  const auto first = kernels::group_norm_backward(gy.to(wide), parts, config, true);
  expect_close(gx, first.x, allowed, "gx alone");
  const auto more = image();
  cuda::group_norm_backward(norm, gy.data_ptr(), more.data_ptr(), gx.data_ptr(),
                            of_channels.data_ptr(), nullptr);
  expect_close(gx, first.x + more.to(wide), allowed, "gx and more");
  expect_close(of_channels.slice(0, 0, 2), first.channels.slice(0, 0, 2), allowed, "channels");
  // A sum that cancels: against the size of what it sums.
  const double pixels = static_cast<double>(c.height * c.columns);
  if (c.add) expect_close(of_channels[2], over_pixels(first.x), allowed, "added", pixels);

  const auto v = image();
  auto ggy = torch::empty_like(x);
  cuda::group_norm_backward_twice(norm, v.data_ptr(), gy.data_ptr(), ggy.data_ptr(), gx.data_ptr(),
                                  of_channels.data_ptr(), nullptr);
  const auto second =
      kernels::group_norm_backward_twice({v.to(wide), {}, {}}, gy.to(wide), parts, config);
  expect_close(ggy, second.gy, allowed, "ggy");
  expect_close(gx, second.x, allowed, "second gx");
  expect_close(of_channels[0], second.channels[0], allowed, "second scale");
  if (c.silu) expect_close(of_channels[1], second.channels[1], allowed, "second shift");
  if (c.add) expect_close(of_channels[2], over_pixels(second.x), allowed, "second added", pixels);
}

// The tall ones are shared by clusters of two and four blocks; of the last a block has as many
// channels as it can.
INSTANTIATE_TEST_SUITE_P(Shapes, GroupNormKernels,
                         testing::Values(NormCase{torch::kDouble, 3, 2, 5, 4, false, true},
                                         NormCase{torch::kDouble, 8, 2, 64, 33, true, true},
                                         NormCase{torch::kDouble, 12, 4, 5, 4, true, false},
                                         NormCase{torch::kFloat, 4, 4, 64, 33, true, true},
                                         NormCase{torch::kFloat, 6, 2, 5, 4, false, false},
                                         NormCase{torch::kBFloat16, 4, 8, 16, 9, true, true},
                                         NormCase{torch::kBFloat16, 9, 2, 16, 9, true, true},
                                         NormCase{torch::kBFloat16, 6, 4, 5, 4, false, true},
                                         NormCase{torch::kBFloat16, 8, 32, 4, 4, true, true}));

// Dropped at the rate, the others scaled, the same elements forward and backward.
TEST(GroupNormKernel, DropoutIsTheSameBothWays) {
  torch::manual_seed(5);
  constexpr int64_t kChannels = 32;
  const auto x = channels_last(torch::randn({2, kChannels, 16, 16}));
  const auto ones = torch::ones({2, kChannels});
  const auto zeros = torch::zeros({2, kChannels});
  auto mean = torch::empty({2, 8});
  auto inverse = torch::empty({2, 8});
  const uint64_t seed = 0x1234567890abcdefU;
  cuda::GroupNorm norm{cuda::Type::float32,
                       2,
                       256,
                       kChannels,
                       8,
                       false,
                       1e-6,
                       x.data_ptr(),
                       {ones.data_ptr(), kChannels},
                       {zeros.data_ptr(), kChannels},
                       {nullptr, 0},
                       6554,
                       65536.0 / (65536.0 - 6554.0),
                       &seed,
                       1,
                       mean.data_ptr(),
                       inverse.data_ptr()};
  auto y = torch::empty_like(x);
  cuda::group_norm_forward(norm, y.data_ptr(), nullptr);
  const auto dropped = y.eq(0);
  EXPECT_NEAR(dropped.to(torch::kFloat).mean().item<double>(), 0.1, 0.01);
  // The sums of gshift count what was kept.
  const auto gy = torch::ones_like(x);
  auto gx = torch::empty_like(x);
  auto of_channels = torch::zeros({3, 2, kChannels});
  cuda::group_norm_backward(norm, gy.data_ptr(), nullptr, gx.data_ptr(), of_channels.data_ptr(),
                            nullptr);
  const auto kept = dropped.logical_not().to(torch::kFloat).sum(at::IntArrayRef({2, 3}));
  expect_close(of_channels[1], kept * norm.kept_gain, 1e-5, "kept");
  norm.salt = 2;
  auto other = torch::empty_like(x);
  cuda::group_norm_forward(norm, other.data_ptr(), nullptr);
  const double both = dropped.logical_and(other.eq(0)).to(torch::kFloat).mean().item<double>();
  EXPECT_NEAR(both, 0.01, 0.005) << "layers that share a seed drop apart from each other";
}

TEST(BranchKernels, AgreeWithTheirTwins) {
  torch::manual_seed(6);
  for (const int64_t channels : {5, 12, 16}) {
    SCOPED_TRACE(channels);
    const auto a = channels_last(torch::randn({2, channels, 6, 5}, torch::kDouble));
    const auto b = channels_last(torch::randn_like(a));
    const auto bias = torch::randn({2, channels}, torch::kDouble);
    const cuda::Image shape{cuda::Type::float64, 2, 30, channels};
    const double gain = std::sqrt(0.5);
    auto y = torch::empty_like(a);
    cuda::scaled_sum(shape, a.data_ptr(), b.data_ptr(), {bias.data_ptr(), channels}, gain,
                     y.data_ptr(), nullptr);
    expect_close(y, reference::residual(a, b, bias), 1e-14, "sum");
    auto sums = torch::empty({2, channels}, torch::kDouble);
    cuda::scaled_with_sums(shape, a.data_ptr(), gain, y.data_ptr(), sums.data_ptr(), nullptr);
    expect_close(y, a * gain, 1e-14, "scaled");
    expect_close(sums, (a * gain).sum(at::IntArrayRef({2, 3})), 1e-13, "sums");
    cuda::scaled_with_sums(shape, b.data_ptr(), 1.0, nullptr, sums.data_ptr(), nullptr);
    expect_close(sums, b.sum(at::IntArrayRef({2, 3})), 1e-13, "sums alone");

    const auto more = channels_last(torch::randn({2, 4, 6, 5}, torch::kDouble));
    const auto whole = channels_last(at::cat({a, more}, 1));
    const cuda::Image joined{cuda::Type::float64, 2, 30, channels + 4};
    auto together = torch::empty_like(whole);
    cuda::concatenate(joined, channels, a.data_ptr(), more.data_ptr(), together.data_ptr(),
                      nullptr);
    EXPECT_TRUE(together.equal(whole));
    auto first = torch::empty_like(a);
    auto second = torch::empty_like(more);
    cuda::separate(joined, channels, whole.data_ptr(), first.data_ptr(), second.data_ptr(),
                   nullptr);
    EXPECT_TRUE(first.equal(a));
    EXPECT_TRUE(second.equal(more));
  }
}

TEST(SoftmaxKernel, AgreesWithItsFormulas) {
  torch::manual_seed(9);
  for (const int64_t size : {5, 80}) {
    const auto draw = [&] { return torch::randn({11, size}, torch::kDouble); };
    const auto a = at::softmax(draw(), 1);
    const auto h = draw();
    const auto gs = draw();
    const auto b = draw();
    auto of_ga = torch::empty_like(a);
    auto of_s = torch::empty_like(a);
    cuda::softmax_twice({cuda::Type::float64, 11, size}, a.data_ptr(), h.data_ptr(), gs.data_ptr(),
                        b.data_ptr(), of_ga.data_ptr(), of_s.data_ptr(), nullptr);
    const auto centred = h - (a * h).sum(1, true);
    const auto all = centred * gs + a * b;
    expect_close(of_ga, a * centred, 1e-13, "of ga");
    expect_close(of_s, all - a * all.sum(1, true), 1e-13, "of s");
  }
}

// More tensors than one launch takes, some empty, some of several blocks.
TEST(EndToEndKernel, CopiesOrAddsAllInOrder) {
  torch::manual_seed(8);
  std::vector<Tensor> tensors;
  std::vector<cuda::Piece> pieces;
  for (int64_t i = 0; i < 110; ++i) {
    tensors.push_back(torch::randn({i % 10 == 3 ? 4100 : i % 10}).to(torch::kBFloat16));
    pieces.push_back({tensors.back().data_ptr(), tensors.back().numel()});
  }
  const auto expected = at::cat(tensors).to(torch::kFloat);
  auto found = torch::empty_like(expected);
  const auto run = [&](bool add) {
    cuda::end_to_end(cuda::Type::bfloat16, pieces.data(), static_cast<int64_t>(pieces.size()),
                     cuda::Type::float32, found.data_ptr(), add, nullptr);
  };
  run(/*add=*/false);
  EXPECT_TRUE(found.equal(expected));
  run(/*add=*/true);
  EXPECT_TRUE(found.equal(2 * expected));
}

TEST(SumsKernel, SumsEachOfManyTensors) {
  torch::manual_seed(3);
  std::vector<Tensor> tensors;
  std::vector<cuda::Piece> pieces;
  for (int64_t size = 1; size <= 130; ++size) tensors.push_back(torch::randn(size, torch::kDouble));
  for (const auto& x : tensors) pieces.push_back({x.data_ptr(), x.numel()});
  auto found = torch::empty({130}, torch::kDouble);
  cuda::sums_of_pieces(cuda::Type::float64, pieces.data(), 130, found.data_ptr(), nullptr);
  for (int64_t i = 0; i < 130; ++i) {
    EXPECT_NEAR(found[i].item<double>(), tensors[static_cast<size_t>(i)].sum().item<double>(),
                1e-12);
  }
}

TEST(RowSumKernels, AgreeWithTheFormulasAndTheirGradients) {
  torch::manual_seed(4);
  const auto randn = [](at::IntArrayRef shape) { return torch::randn(shape, torch::kDouble); };
  for (const int64_t columns : {1, 2, 37, 100}) {
    constexpr int64_t kRows = 9;
    const auto a = randn({kRows, columns});
    const auto halves = randn({kRows, 2 * columns});
    const auto b = halves.slice(1, 0, columns).detach().requires_grad_();
    const auto c = halves.slice(1, columns).detach().requires_grad_();
    const auto g = randn({kRows, 2}).select(1, 0);
    const auto scale = randn({kRows});
    const auto weight = randn({kRows, 3}).select(1, 1);
    const auto added = randn({kRows});
    const auto rows = [](const Tensor& x) { return cuda::RowMatrix{x.data_ptr(), x.stride(0)}; };
    const auto vector = [](const Tensor& x) { return cuda::RowVector{x.data_ptr(), x.stride(0)}; };
    const auto expect = [&](cuda::RowSums sums, const Tensor& plain, const char* what) {
      sums.type = cuda::Type::float64;
      sums.rows = kRows;
      sums.columns = columns;
      auto y = torch::empty({kRows}, torch::kDouble);
      cuda::row_sum(sums, y.data_ptr(), nullptr);
      expect_close(y, plain.detach(), 1e-14, what);
      const bool both = sums.c.values != nullptr;
      auto gb = torch::empty({kRows, columns}, torch::kDouble);
      auto gc = torch::empty({kRows, columns}, torch::kDouble);
      cuda::row_sum_backward(sums, vector(g), gb.data_ptr(), both ? gc.data_ptr() : nullptr,
                             nullptr);
      auto inputs = std::vector<Tensor>{b};
      if (both) inputs.push_back(c);
      const auto expected = torch::autograd::grad({plain}, inputs, {g});
      expect_close(gb, expected[0], 1e-13, what);
      if (both) expect_close(gc, expected[1], 1e-13, what);
    };
    cuda::RowSums sums = {};
    sums.a = rows(a);
    sums.b = rows(b);
    sums.scale = vector(scale);
    sums.weight = vector(weight);
    sums.added = vector(added);
    expect(sums, reference::weighted_squares(b, a, {scale, weight, added}), "squares");
    sums.scale = sums.weight = sums.added = {};
    sums.c = rows(c);
    sums.kind = RowSumKind::gaussian_nll;
    expect(sums, reference::gaussian_nll(a, b, c), "nll");
    sums.a = {};
    sums.kind = RowSumKind::gaussian_kl;
    expect(sums, reference::gaussian_kl(b, c), "kl");
  }
}

TEST(FirKernel, AgreesWithItsTwins) {
  torch::manual_seed(7);
  for (const int64_t channels : {5, 8}) {
    const auto x = channels_last(torch::randn({2, channels, 6, 8}, torch::kDouble));
    const auto fir = [&](int64_t height, int64_t width, int up, int down, int pad, double gain) {
      auto y = torch::empty({2, channels, height, width}, torch::kDouble)
                   .contiguous(at::MemoryFormat::ChannelsLast);
      cuda::fir({cuda::Type::float64, 2, channels, 6, 8, height, width, up, down, pad, gain},
                x.data_ptr(), y.data_ptr(), nullptr);
      return y;
    };
    expect_close(fir(12, 16, 2, 1, 2, 4.0), reference::upsample(x, Filter::fir), 1e-14, "up");
    expect_close(fir(3, 4, 1, 2, 1, 1.0), reference::downsample(x, Filter::fir), 1e-14, "down");
    expect_close(fir(7, 9, 1, 1, 2, 1.0), reference::smooth(x), 1e-14, "smooth");
    // The ways back from images of odd size, and from smooth ones.
    const auto taps = torch::tensor({0.125, 0.375, 0.375, 0.125}, torch::kDouble);
    const auto kernel = at::outer(taps, taps).expand({channels, 1, 4, 4});
    expect_close(fir(13, 17, 2, 1, 2, 1.0), at::conv_transpose2d(x, kernel, {}, 2, 1, 1, channels),
                 1e-14, "up to an odd size");
    expect_close(fir(5, 7, 1, 1, 1, 1.0), at::conv2d(x, kernel, {}, 1, 1, 1, channels), 1e-14,
                 "smooth, back");
  }
}

TEST(FirKernel, TakesEightChannelsOfHalfPrecisionAtOnce) {
  torch::manual_seed(7);
  const auto x = channels_last(torch::randn({2, 16, 6, 8})).to(torch::kBFloat16);
  const auto fir = [&](int64_t height, int64_t width, int up, int down, int pad, double gain) {
    auto y = torch::empty({2, 16, height, width}, torch::kBFloat16)
                 .contiguous(at::MemoryFormat::ChannelsLast);
    cuda::fir({cuda::Type::bfloat16, 2, 16, 6, 8, height, width, up, down, pad, gain}, x.data_ptr(),
              y.data_ptr(), nullptr);
    return y;
  };
  const auto exact = x.to(torch::kFloat);
  expect_close(fir(12, 16, 2, 1, 2, 4.0), reference::upsample(exact, Filter::fir), 0.02, "up");
  expect_close(fir(3, 4, 1, 2, 1, 1.0), reference::downsample(exact, Filter::fir), 0.02, "down");
  expect_close(fir(7, 9, 1, 1, 2, 1.0), reference::smooth(exact), 0.02, "smooth");
}

TEST(AdamKernel, AgreesWithItsTwin) {
  torch::manual_seed(8);
  const auto draw = [] { return torch::randn({300}, torch::kDouble); };
  const auto g = draw();
  const auto dials = torch::full({2}, 0.5, torch::kDouble);
  std::vector<Tensor> found = {draw(), draw(), draw().abs(), draw()};
  std::vector<Tensor> plain;
  for (const auto& tensor : found) plain.push_back(tensor.clone());
  cuda::adam({cuda::Type::float64, 300, 0.3, 0.9, 1e-8, 0.99, dials.data_ptr()},
             found[0].data_ptr(), g.data_ptr(), found[1].data_ptr(), found[2].data_ptr(),
             found[3].data_ptr(), nullptr);
  reference::adam(plain[0], g, plain[1], plain[2], plain[3], dials, {0.3, 0.9, 1e-8, 0.99});
  for (size_t i = 0; i < found.size(); ++i) expect_close(found[i], plain[i], 1e-14, "adam");
}

}  // namespace
}  // namespace ddaebm::ops
