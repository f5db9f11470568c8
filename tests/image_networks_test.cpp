#include <cmath>
#include <cstdlib>
#include <functional>

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/cuda.h>

#include "ddaebm/error.h"
#include "ddaebm/methods/ddaebm.h"
#include "ddaebm/nets/image_layers.h"
#include "ddaebm/ops/attention.h"
#include "ddaebm/ops/cast.h"
#include "ddaebm/ops/conv.h"
#include "ddaebm/ops/group_norm.h"
#include "ddaebm/ops/resample.h"
#include "ddaebm/tf32.h"
#include "ddaebm/train/optimizer.h"

namespace ddaebm {
namespace {

using torch::Tensor;
const torch::TensorOptions kDoubles(torch::kDouble);

ImageNetConfig small_net() {
  ImageNetConfig net;
  net.channels = 8;
  net.multipliers = {1, 2};
  net.blocks = net.energy_blocks = 1;
  net.attention = {8};
  net.dropout = 0.0;
  net.latent = 5;
  net.latent_width = 12;
  net.latent_layers = 1;
  net.encoder_width = 4;
  net.encoder_time = 8;
  return net;
}

ScheduleConfig image_schedule() {
  ScheduleConfig schedule;
  schedule.beta_min = 0.1;
  schedule.beta_max = 20.0;
  schedule.beta_limit = 0.999;
  schedule.posterior_variance_floor = 1e-4;
  return schedule;
}

GameConfig image_game() {
  GameConfig game;
  game.reconstruction = Reconstruction::mse;
  return game;
}

// Last layers that start at zero hide the rest: every parameter gets a size.
void stir(torch::nn::Module& module) {
  const torch::NoGradGuard no_grad;
  for (auto& parameter : module.parameters()) {
    parameter.add_(0.1 * torch::randn_like(parameter));
  }
}

std::unique_ptr<Ddaebm> small_method(const torch::TensorOptions& options,
                                     const ImageNetConfig& net = small_net(), int64_t size = 16) {
  torch::manual_seed(1);
  auto method = std::make_unique<Ddaebm>(Schedule(image_schedule()), image_game(),
                                         make_image_networks({3, size}, 4, net), net.latent,
                                         std::vector<int64_t>{3, size, size}, options);
  return method;
}

int64_t count(torch::nn::Module& module) {
  int64_t n = 0;
  for (const auto& parameter : module.parameters()) n += parameter.numel();
  return n;
}

// First and second derivatives of f in all inputs against central differences, along random
// directions.
void expect_derivatives(const std::function<Tensor(const std::vector<Tensor>&)>& f,
                        const std::vector<std::vector<int64_t>>& shapes) {
  torch::manual_seed(0);
  std::vector<Tensor> at;
  std::vector<Tensor> way;
  for (const auto& shape : shapes) {
    at.push_back(torch::randn(shape, kDoubles));
    way.push_back(torch::randn(shape, kDoubles));
  }
  const auto moved = [&](double h) {
    std::vector<Tensor> inputs;
    for (size_t i = 0; i < at.size(); ++i) {
      inputs.push_back((at[i] + h * way[i]).requires_grad_());
    }
    return inputs;
  };
  const auto weight = torch::randn_like(f(at));
  const auto value = [&](double h) { return (f(moved(h)) * weight).sum().item<double>(); };
  // Its gradient in the first input, along a fixed direction.
  const auto along = torch::randn(shapes[0], kDoubles);
  const auto slope_of = [&](const std::vector<Tensor>& inputs) {
    const auto loss = (f(inputs) * weight).sum();
    const auto g = torch::autograd::grad({loss}, {inputs[0]}, {}, true, /*create_graph=*/true)[0];
    return (g * along).sum();
  };
  const auto total = [&](const std::vector<Tensor>& gradients) {
    double sum = 0;
    for (size_t i = 0; i < gradients.size(); ++i) {
      if (gradients[i].defined()) sum += (gradients[i] * way[i]).sum().item<double>();
    }
    return sum;
  };
  const double h = 1e-4;
  const auto inputs = moved(0);
  const double first = total(torch::autograd::grad({(f(inputs) * weight).sum()}, inputs));
  EXPECT_NEAR(first, (value(h) - value(-h)) / (2 * h), 1e-5 * std::max(1.0, std::abs(first)));
  const auto slope = slope_of(inputs);
  const double second =
      slope.requires_grad()
          ? total(torch::autograd::grad({slope}, inputs, {}, {}, false, /*allow_unused=*/true))
          : 0.0;
  const double difference =
      (slope_of(moved(h)).item<double>() - slope_of(moved(-h)).item<double>()) / (2 * h);
  EXPECT_NEAR(second, difference, 1e-5 * std::max(1.0, std::abs(second)));
}

TEST(ImageOperators, ConvolutionsDerivatives) {
  for (const auto& [kernel, stride, padding] :
       {std::tuple<int64_t, int64_t, int64_t>{3, 1, 1}, {1, 1, 0}, {3, 2, 0}, {4, 2, 1}}) {
    const ops::ConvShape shape{stride, padding};
    // Squared, so that second derivatives are not constant.
    expect_derivatives(
        [&](const auto& in) { return ops::conv2d(in[0], in[1], in[2], shape).square(); },
        {{2, 3, 8, 8}, {4, 3, kernel, kernel}, {4}});
  }
}

TEST(ImageOperators, ImagesFilledUpWithOnesGiveTheSame) {
  torch::manual_seed(4);
  const auto images = torch::randn({2, 3, 6, 5}, torch::kDouble)
                          .contiguous(at::MemoryFormat::ChannelsLast)
                          .requires_grad_();
  const auto filled = filled_up(images);
  EXPECT_EQ(filled.size(1), 8);
  EXPECT_TRUE(filled.is_contiguous(at::MemoryFormat::ChannelsLast));

  Conv conv(3, 4, 3, ops::ConvShape{.stride = 1, .padding = 1}, Init{.kind = Init::libtorch});
  conv->to(torch::kDouble);
  Pass pass;
  pass.weights = {conv->weight};
  const auto expect_same = [](const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
    for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(torch::allclose(a[i], b[i], 1e-12, 1e-12));
  };
  // What it gives, and the gradients of a function of that.
  const auto all = [](const Tensor& y, const std::vector<Tensor>& of) {
    auto found = torch::autograd::grad({y.square().sum()}, of);
    found.push_back(y);
    return found;
  };
  const std::vector<Tensor> inputs = {images, conv->weight, conv->bias};
  expect_same(all(conv->within(pass, images), inputs), all(conv->within(pass, filled), inputs));

  const std::vector<Tensor> without = {images, conv->weight};
  expect_same(all(conv->without_bias(pass, images), without),
              all(conv->without_bias(pass, filled), without));

  for (const int64_t channels : {1, 3, 8, 12}) {
    Conv any(channels, 2, 3, ops::ConvShape{.stride = 1, .padding = 1});
    expect_derivatives(
        [&](const std::vector<Tensor>& in) {
          Pass own;
          own.weights = {in[1]};
          any->bias = in[2];
          return any->within(own, filled_up(in[0])).square();
        },
        {{2, channels, 4, 3}, {2, channels, 3, 3}, {2}});
  }
}

TEST(ImageOperators, AttentionsDerivatives) {
  const std::vector<std::vector<int64_t>> shapes = {{2, 4, 3, 3}, {4, 12}, {12}, {4, 4}};
  const auto attention = [](const auto& in) { return ops::attention(in[0], in[1], in[2], in[3]); };
  expect_derivatives(attention, shapes);
  // And of the gradients in all inputs, against autograd's.
  const auto second = [&](const auto& op) {
    torch::manual_seed(2);
    std::vector<Tensor> inputs;
    for (const auto& shape : shapes)
      inputs.push_back(torch::randn(shape, kDoubles).requires_grad_());
    const auto y = op(inputs);
    const auto first = torch::autograd::grad({(y * torch::randn_like(y)).sum()}, inputs, {}, true,
                                             /*create_graph=*/true);
    auto sum = torch::zeros({}, kDoubles);
    for (const auto& g : first) sum = sum + (g * torch::randn_like(g)).sum();
    return torch::autograd::grad({sum}, inputs);
  };
  const auto found = second(attention);
  const auto expected =
      second([](const auto& in) { return ops::reference::attention(in[0], in[1], in[2], in[3]); });
  for (size_t i = 0; i < shapes.size(); ++i) {
    EXPECT_LT((found[i] - expected[i]).abs().max().item<double>(), 1e-10) << i;
  }
}

TEST(ImageOperators, ResamplingsDerivatives) {
  for (const auto filter : {ops::Filter::fir, ops::Filter::box}) {
    expect_derivatives([&](const auto& in) { return ops::upsample(in[0], filter).square(); },
                       {{2, 3, 4, 6}});
    expect_derivatives([&](const auto& in) { return ops::downsample(in[0], filter).square(); },
                       {{2, 3, 4, 6}});
  }
  expect_derivatives([&](const auto& in) { return ops::smooth(in[0]).square(); }, {{2, 3, 4, 6}});
}

TEST(ImageOperators, GroupNormsDerivatives) {
  for (const bool silu : {true, false}) {
    const ops::GroupNormConfig config{.groups = 2, .silu = silu};
    const auto norm = [&](const auto& in) { return ops::group_norm(in[0], in[1], in[2], config); };
    expect_derivatives(norm, {{3, 6, 4, 4}, {6}, {6}});
    expect_derivatives(norm, {{3, 6, 4, 4}, {3, 6}, {3, 6}});
  }
}

// Dropped at the rate, the others scaled; the same elements in every derivative, others in other
// layers.
TEST(ImageOperators, DropoutIsTheSameInAllDerivatives) {
  const ops::GroupNormConfig config{.groups = 2, .silu = true};
  const auto seed = torch::full({1}, int64_t{0x1234567890abcdef}, torch::kLong);
  const auto dropped = [&](double rate, int64_t salt) {
    return [=](const std::vector<Tensor>& in) {
      return ops::group_norm(in[0], in[1], in[2], in[3], config, {rate, seed, salt});
    };
  };
  expect_derivatives(dropped(0.25, 3), {{3, 6, 4, 4}, {3, 6}, {3, 6}, {3, 6}});

  torch::manual_seed(7);
  const std::vector<Tensor> inputs = {torch::randn({2, 32, 16, 16}), torch::zeros({2, 32}),
                                      torch::ones({2, 32}), torch::ones({2, 32})};
  const auto all = dropped(0, 1)(inputs);
  const auto some = dropped(0.1, 1)(inputs);
  const auto gone = some.eq(0);
  EXPECT_NEAR(gone.to(torch::kFloat).mean().item<double>(), 0.1, 0.01);
  EXPECT_TRUE(torch::allclose(some, all.masked_fill(gone, 0) / 0.9, 1e-4));
  const auto other = dropped(0.1, 2)(inputs).eq(0);
  EXPECT_NEAR(gone.logical_and(other).to(torch::kFloat).mean().item<double>(), 0.01, 0.005);
}

TEST(ImageOperators, FirKeepsAConstantInside) {
  const auto x = torch::ones({1, 1, 8, 8}, kDoubles);
  const auto inside = [](const Tensor& y) {
    return y.slice(2, 2, y.size(2) - 2).slice(3, 2, y.size(3) - 2);
  };
  for (const auto& y :
       {ops::upsample(x, ops::Filter::fir),
        ops::downsample(ops::upsample(x, ops::Filter::fir), ops::Filter::fir), ops::smooth(x)}) {
    EXPECT_LT((inside(y) - 1).abs().max().item<double>(), 1e-12);
  }
}

TEST(ImageNetworks, HaveTheSourcesNumberOfParameters) {
  const auto nets = make_image_networks({3, 32}, 4, ImageNetConfig());
  EXPECT_EQ(count(*nets.generator), 48432515);
  EXPECT_EQ(count(*nets.energy), 40279171);
  EXPECT_EQ(count(*nets.encoder), 4772872);
}

TEST(ImageNetworks, StartAsInTheSources) {
  torch::manual_seed(0);
  const auto nets = make_image_networks({3, 16}, 4, small_net());
  nets.energy->to(torch::kDouble);
  const auto x = torch::randn({4, 3, 16, 16}, kDoubles);
  const auto t = torch::tensor({0, 1, 2, 3});
  // The last convolution is as good as zero: E = -|x|^2 / 2.
  const auto expected = -0.5 * x.square().flatten(1).sum(1);
  EXPECT_LT((nets.energy->forward(x, t) - expected).abs().max().item<double>(), 0.05);
  for (const auto& item : nets.generator->named_parameters()) {
    const auto& name = item.key();
    if (name.find("style.bias") != std::string::npos) {
      const auto half = item.value().size(0) / 2;
      EXPECT_TRUE((item.value().slice(0, 0, half) == 1).all().item<bool>()) << name;
      EXPECT_TRUE((item.value().slice(0, half) == 0).all().item<bool>()) << name;
    } else if (name == "net.down0_block0.conv0.weight") {
      // Uniform with variance 1 / mean of the fans: 8 channels in and out, 9 taps.
      const double bound = std::sqrt(3.0 / (8 * 9));
      EXPECT_LE(item.value().abs().max().item<double>(), bound);
      EXPECT_NEAR(item.value().std().item<double>(), bound / std::sqrt(3.0), 0.1 * bound);
    } else if (name.find("bias") != std::string::npos) {
      EXPECT_TRUE((item.value() == 0).all().item<bool>()) << name;
    }
  }
}

TEST(ImageNetworks, TakeOneImage) {
  auto large = small_net();
  large.encoder = ImageEncoder::large;
  for (const auto& [net, size] :
       {std::pair<ImageNetConfig, int64_t>{small_net(), 16}, {small_net(), 32}, {large, 64}}) {
    const auto nets = make_image_networks({3, size}, 4, net);
    const auto x = torch::randn({1, 3, size, size}, kDoubles);
    const auto t = torch::tensor({2});
    const auto q = nets.encoder->forward(x, x, t);
    EXPECT_EQ(q.mean.sizes(), (std::vector<int64_t>{1, 5}));
    EXPECT_EQ(q.log_variance.sizes(), (std::vector<int64_t>{1, 5}));
    EXPECT_EQ(nets.generator->forward(x, torch::randn({1, 5}, kDoubles), t).sizes(), x.sizes());
    EXPECT_EQ(nets.energy->forward(x, t).sizes(), (std::vector<int64_t>{1}));
  }
}

// As each tensor's own cast, forward and backward, though it is one cast for all.
TEST(ImageOperators, CastAllIsEachOnesCast) {
  torch::manual_seed(2);
  const auto weight = [](at::IntArrayRef shape, at::MemoryFormat order) {
    return torch::randn(shape).contiguous(order).requires_grad_();
  };
  const std::vector<Tensor> tensors = {
      weight({4, 3, 3, 3}, at::MemoryFormat::ChannelsLast),
      weight({5}, at::MemoryFormat::Contiguous),
      weight({2, 3, 1, 1}, at::MemoryFormat::ChannelsLast),
      weight({6, 7}, at::MemoryFormat::Contiguous),
  };
  const auto cast = ops::cast_all(tensors, torch::kBFloat16);
  auto loss = torch::zeros({});
  auto expected = torch::zeros({});
  for (size_t i = 0; i < tensors.size(); ++i) {
    EXPECT_TRUE(cast[i].equal(tensors[i].to(torch::kBFloat16)));
    EXPECT_EQ(cast[i].strides(), tensors[i].strides());
    const auto factor = torch::randn(tensors[i].sizes()).to(torch::kBFloat16);
    loss = loss + (cast[i] * factor).sum();
    expected = expected + (tensors[i].to(torch::kBFloat16) * factor).sum();
  }
  const auto found = torch::autograd::grad({loss}, tensors);
  const auto each = torch::autograd::grad({expected}, tensors);
  for (size_t i = 0; i < tensors.size(); ++i) EXPECT_TRUE(found[i].equal(each[i])) << i;
}

TEST(ImageNetworks, ListsMayBeEmptyWhereThatMeansSomething) {
  auto net = small_net();
  net.attention = {};
  EXPECT_NO_THROW(make_image_networks({3, 16}, 4, net));
  net.multipliers = {};
  EXPECT_THROW(make_image_networks({3, 16}, 4, net), Error);
}

TEST(ImageNetworks, RefuseSizesThatCannotBeHalved) {
  auto net = small_net();
  net.multipliers = {1, 1, 1, 1};
  EXPECT_THROW(make_image_networks({3, 36}, 4, net), Error);
  EXPECT_THROW(make_image_networks({3, 24}, 4, small_net()), Error);  // the encoder ends at 4x4
  net = small_net();
  net.encoder = ImageEncoder::large;
  EXPECT_THROW(make_image_networks({3, 32}, 4, net), Error);
}

TEST(ImageNetworks, TimeAndLatentMatter) {
  torch::manual_seed(0);
  const auto nets = make_image_networks({3, 16}, 4, small_net());
  stir(*nets.generator);
  stir(*nets.energy);
  const auto x = torch::randn({1, 3, 16, 16}, kDoubles).expand({2, 3, 16, 16});
  const auto differ = [](const Tensor& y) {
    return (y[0] - y[1]).abs().max().item<double>() > 1e-4;
  };
  const auto z = torch::randn({2, 5}, kDoubles);
  EXPECT_TRUE(differ(nets.energy->forward(x, torch::tensor({0, 3}))));
  EXPECT_TRUE(differ(nets.generator->forward(x, z, torch::tensor({1, 1}))));
  EXPECT_TRUE(
      differ(nets.generator->forward(x, z.slice(0, 0, 1).expand({2, 5}), torch::tensor({0, 3}))));
}

struct Played {
  std::vector<double> losses;  // of each step both, and E on real images, whose difference one is
  std::vector<NamedTensor> state;
};

// Plays iterations first .. last - 1 with draws made on the CPU, from `state` on if that is given.
Played play(const torch::TensorOptions& options, const ImageNetConfig& net, int64_t size, int first,
            int last, const std::vector<NamedTensor>& state = {}) {
  constexpr int64_t kBatch = 4;
  auto method = small_method(options, net, size);
  OptimizerConfig adam;
  adam.lr = 1e-4;
  Optimizer optimizer(*method, adam);
  {
    const torch::NoGradGuard no_grad;
    const auto own = optimizer.state();
    for (size_t i = 0; i < state.size(); ++i) Tensor(own[i].tensor).copy_(state[i].tensor);
  }
  torch::manual_seed(first + 2);
  const auto on_cpu = options.device(torch::kCPU);
  const auto x0 = torch::rand({kBatch, 3, size, size}, on_cpu) * 2 - 1;
  Played played;
  const auto update = [&](size_t player, const Tensor& loss, bool final_part) {
    optimizer.update(player, loss, final_part);
  };
  for (int step = first; step < last; ++step) {
    optimizer.set_iteration(step, last);
    const auto like_x = [&] { return torch::randn_like(x0).to(options); };
    const auto like_z = [&] { return torch::randn({kBatch, net.latent}, on_cpu).to(options); };
    Noise noise;
    noise.t = torch::randint(4, {kBatch}, torch::kLong).to(options.device());
    noise.eps_t = like_x();
    noise.eps_next = like_x();
    noise.z = like_z();
    noise.eps_fake = like_x();
    noise.eps_encoder = like_z();
    const auto it = method->play(x0.to(options), noise, update);
    played.losses.push_back(it.energy_loss.item<double>());
    played.losses.push_back(it.generator_loss.item<double>());
    played.losses.push_back(it.energy_real.mean().item<double>());
  }
  played.state = optimizer.state();
  return played;
}

// The first steps of Adam turn gradients that are rounding alone into steps of full size, and two
// runs in float32 part whatever the device; so both begin where a short run left off.
TEST(ImageTraining, AGpuFollowsTheCpu) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "no GPU here";
  const AllowTf32 exact(false);
  const bool full = std::getenv("DDAEBM_FULL_NETWORK") != nullptr;  // a minute on a CPU
  auto net = full ? ImageNetConfig() : small_net();
  net.dropout = 0.0;
  const int64_t size = full ? 32 : 16;
  const auto on_cpu = torch::TensorOptions(torch::kFloat);
  const auto on_gpu = on_cpu.device(torch::kCUDA);
  const auto begun = play(on_gpu, net, size, 0, 40).state;
  const auto gpu = play(on_gpu, net, size, 40, 50, begun).losses;
  const auto cpu = play(on_cpu, net, size, 40, 50, begun).losses;
  for (size_t i = 0; i < cpu.size(); i += 3) {
    const double energy = std::abs(cpu[i + 2]);
    const auto parted = [&](size_t k, double by) { return std::abs(gpu[k] - cpu[k]) / by; };
    std::cout << "step " << i / 3 << ": energy's loss apart by " << parted(i, energy)
              << " of E, generator's by " << parted(i + 1, std::abs(cpu[i + 1])) << ", E by "
              << parted(i + 2, energy) << "\n";
    EXPECT_LE(parted(i, energy), 1e-4);
    EXPECT_LE(parted(i + 1, std::abs(cpu[i + 1])), 1e-4);
    EXPECT_LE(parted(i + 2, energy), 1e-4);
  }
}

TEST(ImageTraining, MicroBatchesGiveTheWholeBatchsStep) {
  std::vector<Tensor> results;
  std::vector<Tensor> losses;
  for (const int64_t micro_batch : {0, 2, 3}) {
    auto method = small_method(kDoubles);
    stir(method->module());
    method->micro_batch = micro_batch;
    OptimizerConfig adam;
    adam.beta2 = 0.9;
    adam.eps = 1e-3;  // Adam's first step is else the sign of the gradient alone
    Optimizer optimizer(*method, adam);
    optimizer.set_iteration(0, 1);
    Random random(torch::kCPU, 3);
    const auto x0 = torch::rand({7, 3, 16, 16}, kDoubles) * 2 - 1;
    random.restart(Random::kTraining, 0);
    losses.push_back(method->step(x0, torch::zeros({}, kDoubles), random,
                                  [&](size_t player, const Tensor& loss, bool last) {
                                    optimizer.update(player, loss, last);
                                  }));
    std::vector<Tensor> flat;
    for (const auto& parameter : method->module().parameters()) {
      flat.push_back(parameter.detach().reshape({-1}));
    }
    results.push_back(torch::cat(flat));
  }
  for (size_t i = 1; i < results.size(); ++i) {
    EXPECT_LT((results[i] - results[0]).abs().max().item<double>(), 1e-11);
    EXPECT_LT(
        ((losses[i] - losses[0]).abs() / losses[0].abs().clamp_min(1e-3)).max().item<double>(),
        1e-11);
  }
}

TEST(ImageTraining, Bfloat16StaysNearFloat32) {
  auto net = small_net();
  const auto energy = [&](Precision precision) {
    net.precision = precision;
    auto method = small_method(torch::TensorOptions(torch::kFloat), net);
    stir(method->module());
    method->module().eval();
    return method->log_density(torch::rand({4, 3, 16, 16}));
  };
  const auto full = energy(Precision::float32);
  const auto half = energy(Precision::bf16);
  EXPECT_EQ(half.scalar_type(), torch::kFloat);
  const double error = ((full - half).abs() / full.abs()).max().item<double>();
  EXPECT_LT(error, 0.05);
  EXPECT_GT(error, 0.0);
}

TEST(ImageSampling, TheDenoisingStepFollowsTheEnergysGradient) {
  const auto sample = [&](double eta) {
    torch::manual_seed(1);
    auto game = image_game();
    game.denoise = eta;
    const auto net = small_net();
    Ddaebm method(Schedule(image_schedule()), game, make_image_networks({3, 16}, 4, net),
                  net.latent, {3, 16, 16}, kDoubles);
    stir(method.module());
    Random random(torch::kCPU, 5);
    random.restart(Random::kSampling, 0);
    const torch::NoGradGuard no_grad;
    auto x = method.sample(2, random);
    return std::pair(x, method.log_density(x));
  };
  const auto [plain, before] = sample(0.0);
  const auto [moved, after] = sample(1e-5);
  const auto [further, last] = sample(2e-5);
  EXPECT_LT(((further - plain) - 2 * (moved - plain)).abs().max().item<double>(), 1e-12);
  EXPECT_TRUE((after > before).all().item<bool>());
}

}  // namespace
}  // namespace ddaebm
