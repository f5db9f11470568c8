// The operators of the CIFAR-10 networks one by one: how long each takes at the shapes of a batch
// of 64, and what share that is of what the device can do: of a large product for convolutions, of
// a large sum for what only moves memory. Prints a table for docs/performance.md.
// `ddaebm_operators cuda` runs on a GPU, in bfloat16; the CPU's numbers are of float32.

#include <chrono>
#include <functional>
#include <iostream>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <torch/cuda.h>

#include "ddaebm/ops/adam.h"
#include "ddaebm/ops/attention.h"
#include "ddaebm/ops/branches.h"
#include "ddaebm/ops/cast.h"
#include "ddaebm/ops/conv.h"
#include "ddaebm/ops/dense_kernels.h"
#include "ddaebm/ops/image_kernels.h"
#include "ddaebm/ops/resample.h"
#include "ddaebm/ops/tuning.h"
#include "ddaebm/train/graph.h"
#include "ddaebm/train/model.h"

namespace ddaebm {
namespace {

using torch::Tensor;

torch::Device& device() {
  static torch::Device chosen{torch::kCPU};
  return chosen;
}

torch::ScalarType type() { return device().is_cuda() ? torch::kBFloat16 : torch::kFloat; }

Tensor draw(at::IntArrayRef shape) {
  auto x = torch::randn(shape, torch::TensorOptions(torch::kFloat).device(device())).to(type());
  return x.dim() == 4 ? x.contiguous(at::MemoryFormat::ChannelsLast) : x;
}

// Seconds of one call, without the launching of it. Results are kept until the end of a round, so
// that a call finds memory as it would in a network.
double seconds(const std::function<Tensor()>& call) {
  const torch::NoGradGuard no_grad;
  const int calls = device().is_cuda() ? 20 : 1;
  RepeatedStep round(
      [&] {
        std::vector<Tensor> results;
        for (int i = 0; i < calls; ++i) results.push_back(call());
      },
      {}, device());
  const auto finish = [] {
    if (device().is_cuda()) torch::cuda::synchronize();
  };
  double best = 1e30;
  for (int i = 0; i < 5; ++i) {
    const auto start = std::chrono::steady_clock::now();
    round();
    finish();
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - start;
    best = std::min(best, passed.count() / calls);
  }
  return best;
}

struct Table {
  double product;  // FLOP/s of a large one
  double traffic;  // bytes/s of a large sum of two tensors

  void row(const std::string& name, double flop, double bytes,
           const std::function<Tensor()>& call) const {
    const double time = seconds(call);
    std::cout << fmt::format("| {} | {:.1f} | ", name, time * 1e6);
    if (flop > 0) {
      std::cout << fmt::format("{:.0f} GFLOP/s | {:.0f} % |\n", flop / time / 1e9,
                               100 * flop / time / product);
    } else {
      std::cout << fmt::format("{:.0f} GB/s | {:.0f} % |\n", bytes / time / 1e9,
                               100 * bytes / time / traffic);
    }
  }
};

// y as x has it, for `images` images of a side and so many channels.
void rows_of_images(const Table& table, int64_t images, int64_t channels, int64_t side) {
  const std::string shape = fmt::format("{} channels, {}x{}", channels, side, side);
  const auto x = draw({images, channels, side, side});
  const auto g = draw({images, channels, side, side});
  const auto v = draw({images, channels, side, side});
  const auto size = static_cast<double>(x.nbytes());

  const auto w = draw({channels, channels, 3, 3});
  const double flop = 2.0 * static_cast<double>(x.numel()) * static_cast<double>(channels) * 9.0;
  const std::vector<int64_t> one = {1, 1};
  const std::vector<int64_t> zero = {0, 0};
  const auto gradient = [&](bool data) {
    const auto found = at::convolution_backward(g, x, w, c10::nullopt, one, one, one, false, zero,
                                                1, {data, !data, false});
    return data ? std::get<0>(found) : std::get<1>(found);
  };
  table.row("convolution 3x3, " + shape, flop, 0,
            [&] { return at::convolution(x, w, {}, one, one, one, false, zero, 1); });
  table.row("its gradient in the image", flop, 0, [&] { return gradient(true); });
  table.row("its gradient in the weight", flop, 0, [&] { return gradient(false); });

  const ops::GroupNormConfig config{.groups = 32, .silu = true};
  const auto values =
      torch::ones({images, channels}, torch::TensorOptions(torch::kFloat).device(device()));
  ops::kernels::GroupNormParts parts{x, values, values, {}, {}, {}, {}};
  table.row("group norm, SiLU", 0, 2 * size,
            [&] { return ops::kernels::group_norm_forward(parts, config); });
  table.row("its gradients", 0, 3 * size,
            [&] { return ops::kernels::group_norm_backward(g, parts, config, true).x; });
  table.row("the gradients of those", 0, 5 * size, [&] {
    return ops::kernels::group_norm_backward_twice({v, {}, {}}, g, parts, config).x;
  });
  table.row("sum of branches", 0, 3 * size, [&] { return ops::residual(x, g, values); });
  table.row("channels side by side", 0, 4 * size, [&] { return ops::concatenate(x, g); });
  table.row("FIR to half the size", 0, 1.25 * size,
            [&] { return ops::downsample(x, ops::Filter::fir); });
  table.row("FIR to twice the size", 0, 5 * size,
            [&] { return ops::upsample(x, ops::Filter::fir); });
}

int run() {
  const bool gpu = device().is_cuda();
  const int64_t side = gpu ? 8192 : 1024;
  const auto a = draw({side, side});
  const auto b = draw({side, side});
  const auto large = draw({gpu ? int64_t{1} << 29 : int64_t{1} << 26});
  const double product = 2.0 * static_cast<double>(side) * static_cast<double>(side) *
                         static_cast<double>(side) /
                         seconds([&] { return ops::kernels::product(a, b); });
  auto to = torch::empty_like(large);
  const auto other = draw({large.numel()});
  const double traffic = 3.0 * static_cast<double>(large.nbytes()) /
                         seconds([&] { return at::add_out(to, large, other); });
  const Table table{product, traffic};
  std::cout << fmt::format(
      "Ceilings: a product of {0}x{0} matrices {1:.0f} GFLOP/s, a sum of two tensors of {2:.1f} GB "
      "{3:.0f} GB/s; what fits caches may be faster.\n\n"
      "| operator, batch of {4} | microseconds | rate | of the ceiling |\n|---|---|---|---|\n",
      side, product / 1e9, static_cast<double>(large.nbytes()) / 1e9, traffic / 1e9, gpu ? 64 : 4);
  const int64_t images = gpu ? 64 : 4;
  for (const auto& [channels, size] :
       {std::pair<int64_t, int64_t>{128, 32}, {256, 16}, {256, 8}, {256, 4}}) {
    rows_of_images(table, images, channels, size);
  }

  const auto x = draw({images, 256, 16, 16});
  const auto map = draw({256, 768});
  const auto bias = draw({768});
  const auto out = draw({256, 256});
  const double pixels = static_cast<double>(images) * 256;
  table.row("attention, 256 channels, 16x16", 2.0 * pixels * 256 * (768 + 256 + 512), 0,
            [&] { return ops::attention(x, map, bias, out); });

  const int64_t weights = gpu ? 40'279'171 : 4'000'000;
  const auto floats = torch::TensorOptions(torch::kFloat).device(device());
  std::vector<Tensor> p;
  for (int i = 0; i < 5; ++i) p.push_back(torch::rand({weights}, floats));
  const auto dials = torch::ones({2}, floats);
  table.row("Adam and average, all weights of E", 0, 9.0 * 4.0 * static_cast<double>(weights), [&] {
    ops::adam(p[0], p[1], p[2], p[3], p[4], dials, {0.0, 0.9, 1e-8, 0.999});
    return p[0];
  });
  if (gpu) {
    table.row("their cast to bfloat16", 0, 6.0 * static_cast<double>(weights),
              [&] { return ops::cast_all({p[1]}, torch::kBFloat16)[0]; });
  }
  return 0;
}

}  // namespace
}  // namespace ddaebm

int main(int argc, char** argv) {
  ddaebm::ops::tune_process(argv);
  try {
    if (argc > 1) ddaebm::device() = ddaebm::parse_device(argv[1]);
    return ddaebm::run();
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
