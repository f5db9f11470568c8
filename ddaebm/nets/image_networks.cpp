#include <cmath>
#include <numbers>

#include "ddaebm/error.h"
#include "ddaebm/nets/image_layers.h"
#include "ddaebm/nets/mlp.h"
#include "ddaebm/nets/networks.h"
#include "ddaebm/nets/unet.h"

namespace ddaebm {
namespace {

using torch::Tensor;

constexpr double kLeak = 0.2;

// Images as the convolutions want them.
struct Entrance {
  explicit Entrance(const ImageNetConfig& config)
      : half(config.precision == Precision::bf16), channels_last(config.channels_last) {}
  Tensor operator()(const Tensor& x) const {
    return x.to(half ? torch::kBFloat16 : x.scalar_type(), /*non_blocking=*/false, /*copy=*/false,
                channels_last ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Preserve);
  }
  bool half, channels_last;
};

// E = -1/2 |x - f(x, t)|^2: high where f leaves x as it is.
struct ImageEnergy : EnergyNet {
  ImageEnergy(const ImageShape& image, int64_t steps, const ImageNetConfig& config)
      : net_(register_module(
            "net", UNet(image.channels, image.size, steps, config.energy_blocks, 0, config))),
        enter_(config) {}
  Tensor forward(const Tensor& x, const Tensor& t) override {
    return -0.5 * (x - net_(enter_(x), t).to(x.scalar_type())).square().flatten(1).sum(1);
  }
  Tensor features(const Tensor& x, const Tensor& t) override {
    return net_->features(enter_(x), t).to(x.scalar_type());
  }
  UNet net_;
  Entrance enter_;
};

struct ImageGenerator : GeneratorNet {
  ImageGenerator(const ImageShape& image, int64_t steps, const ImageNetConfig& config)
      : net_(register_module("net", UNet(image.channels, image.size, steps, config.blocks,
                                         config.latent_width, config))),
        enter_(config),
        tanh_(config.tanh) {
    for (int64_t i = 0; i <= config.latent_layers; ++i) {
      map_.push_back(register_module(
          fmt::format("latent{}", i),
          Linear(i == 0 ? config.latent : config.latent_width, config.latent_width)));
    }
  }
  Tensor forward(const Tensor& x_next, const Tensor& z, const Tensor& t) override {
    auto latent = pixel_norm(z);
    for (auto& layer : map_) latent = at::silu(layer(latent));
    const auto out = net_(enter_(x_next), t, latent).to(x_next.scalar_type());
    return tanh_ ? out.tanh() : out;
  }
  // Images do not see each other.
  bool one_pass() const override { return true; }
  std::vector<Tensor> guesses(const Tensor& x_next, const std::vector<Tensor>& zs,
                              const Tensor& t) override {
    if (zs.size() == 1) return {forward(x_next, zs[0], t)};
    const std::vector<Tensor> all_x(zs.size(), x_next);
    const std::vector<Tensor> all_t(zs.size(), t);
    return forward(at::cat(all_x), at::cat(zs), at::cat(all_t))
        .chunk(static_cast<int64_t>(zs.size()));
  }
  UNet net_;
  Entrance enter_;
  std::vector<Linear> map_;
  bool tanh_;
};

// The time embedding of both encoders: [N] -> [N, width].
struct TimeMapImpl : torch::nn::Module {
  TimeMapImpl(int64_t steps, int64_t width)
      : embeddings_(register_buffer("embeddings", time_embeddings(steps, width))),
        first_(register_module("linear0", Linear(width, width))),
        second_(register_module("linear1", Linear(width, width))) {}
  Tensor forward(const Tensor& t) {
    const auto hidden = at::leaky_relu(first_(embeddings_), kLeak);
    return at::leaky_relu(second_(hidden), kLeak).index_select(0, t);
  }
  Tensor embeddings_;
  Linear first_, second_;
};
TORCH_MODULE(TimeMap);

Tensor as_bias(const Tensor& of_channels, const Tensor& x) {
  return of_channels.to(x.scalar_type()).unsqueeze(2).unsqueeze(3);
}

// Convolutions that halve the image to 4x4, then one to each head.
struct ConvEncoder : EncoderNet {
  ConvEncoder(const ImageShape& image, int64_t steps, const ImageNetConfig& config)
      : time_(register_module("time", TimeMap(steps, config.encoder_time))), enter_(config) {
    int64_t in = 2 * image.channels;
    int64_t out = config.encoder_width;
    int64_t size = image.size;
    const Init init{.kind = Init::libtorch};
    const auto add = [&](int64_t kernel, int64_t stride) {
      const auto i = convs_.size();
      convs_.push_back(register_module(fmt::format("conv{}", i),
                                       Conv(in, out, kernel, ops::ConvShape{stride, 1}, init,
                                            /*with_bias=*/false)));
      times_.push_back(register_module(fmt::format("time{}", i), Linear(config.encoder_time, out)));
      in = out;
      out *= 2;
    };
    add(3, 1);
    for (; size > 4 && size % 2 == 0; size /= 2) add(4, 2);
    if (size != 4) {
      fail(
          "images of {0}x{0}: the convolutional encoder halves them to 4x4; set data.size to 16, "
          "32, 64, ..., or image_net.encoder to \"large\"",
          image.size);
    }
    mean_ = register_module("mean", Conv(in, config.latent, 4, ops::ConvShape{}, init));
    log_variance_ =
        register_module("log_variance", Conv(in, config.latent, 4, ops::ConvShape{}, init));
  }
  Gaussian forward(const Tensor& x_t, const Tensor& x_next, const Tensor& t) override {
    const auto time = time_(t);
    auto h = enter_(torch::cat({x_t, x_next}, 1));
    for (size_t i = 0; i < convs_.size(); ++i) {
      h = at::leaky_relu(convs_[i](h), kLeak);
      h = h + as_bias(times_[i](time), h);
    }
    const auto head = [&](Conv& conv) { return conv(h).flatten(1).to(x_t.scalar_type()); };
    return {head(mean_), head(log_variance_)};
  }
  TimeMap time_;
  Entrance enter_;
  std::vector<Conv> convs_;
  std::vector<Linear> times_;
  Conv mean_{nullptr}, log_variance_{nullptr};
};

// A halving residual block of DDGAN's large discriminator.
struct HalvingBlockImpl : torch::nn::Module {
  HalvingBlockImpl(int64_t in, int64_t out, int64_t time_width)
      : conv0_(register_module("conv0", Conv(in, out, 3, ops::ConvShape{1, 1}))),
        time_(register_module("time", Linear(time_width, out))),
        conv1_(register_module("conv1", Conv(out, out, 3, ops::ConvShape{1, 1}, Init{.scale = 0}))),
        skip_(register_module("skip", Conv(in, out, 1, ops::ConvShape{}, Init{}, false))) {}
  Tensor forward(const Tensor& x, const Tensor& time) {
    auto h = conv0_(at::leaky_relu(x, kLeak));
    h = at::leaky_relu(h + as_bias(time_(time), h), kLeak);
    h = conv1_(ops::downsample(h, ops::Filter::fir));
    return (h + skip_(ops::downsample(x, ops::Filter::fir))) * (std::numbers::sqrt2 / 2);
  }
  Conv conv0_;
  Linear time_;
  Conv conv1_, skip_;
};
TORCH_MODULE(HalvingBlock);

// The mean deviation of features between images of a group, as one more channel: lets the encoder
// see how varied a batch is. Groups of four, or as many as divide the batch.
Tensor with_minibatch_deviation(const Tensor& x) {
  const int64_t n = x.size(0);
  int64_t group = std::min<int64_t>(n, 4);
  while (n % group != 0) --group;
  const auto grouped = x.reshape({group, n / group, -1});
  const auto variance = (grouped - grouped.mean(0)).square().mean(0);
  const auto deviation = (variance + 1e-8).sqrt().mean(1);  // [N / group]
  const auto channel =
      deviation.repeat({group}).reshape({n, 1, 1, 1}).expand({n, 1, x.size(2), x.size(3)});
  return torch::cat({x, channel}, 1);
}

struct LargeEncoder : EncoderNet {
  LargeEncoder(const ImageShape& image, int64_t steps, const ImageNetConfig& config)
      : time_(register_module("time", TimeMap(steps, config.encoder_time))), enter_(config) {
    constexpr int64_t kHalvings = 6;
    if (image.size % (int64_t{1} << kHalvings) != 0) {
      fail(
          "images of {0}x{0}: the large encoder halves them six times; set data.size to a multiple "
          "of 64, or image_net.encoder to \"convolutional\"",
          image.size);
    }
    const int64_t width = config.encoder_width;
    in_ = register_module("in", Conv(2 * image.channels, 2 * width, 1, ops::ConvShape{}));
    int64_t channels = 2 * width;
    for (int64_t i = 0; i < kHalvings; ++i) {
      const int64_t out = i == 0 ? 4 * width : 8 * width;
      blocks_.push_back(register_module(fmt::format("block{}", i),
                                        HalvingBlock(channels, out, config.encoder_time)));
      channels = out;
    }
    out_ = register_module("out", Conv(channels + 1, channels, 3, ops::ConvShape{1, 1}));
    mean_ = register_module("mean", Linear(channels, config.latent));
    log_variance_ = register_module("log_variance", Linear(channels, config.latent));
  }
  Gaussian forward(const Tensor& x_t, const Tensor& x_next, const Tensor& t) override {
    const auto time = time_(t);
    auto h = in_(enter_(torch::cat({x_t, x_next}, 1)));
    for (auto& block : blocks_) h = block(h, time);
    h = at::leaky_relu(out_(with_minibatch_deviation(h)), kLeak);
    const auto code = h.to(x_t.scalar_type()).flatten(2).sum(2);
    return {mean_(code), -at::softplus(log_variance_(code))};
  }
  TimeMap time_;
  Entrance enter_;
  Conv in_{nullptr}, out_{nullptr};
  std::vector<HalvingBlock> blocks_;
  Linear mean_{nullptr}, log_variance_{nullptr};
};

}  // namespace

std::shared_ptr<EncoderNet> make_image_encoder(const ImageShape& image, int64_t steps,
                                               const ImageNetConfig& config) {
  if (config.encoder == ImageEncoder::large) {
    return std::make_shared<LargeEncoder>(image, steps, config);
  }
  return std::make_shared<ConvEncoder>(image, steps, config);
}

Networks make_image_networks(const ImageShape& image, int64_t steps, const ImageNetConfig& config) {
  auto encoder = make_image_encoder(image, steps, config);
  return {std::make_shared<ImageEnergy>(image, steps, config),
          std::make_shared<ImageGenerator>(image, steps, config), encoder};
}

}  // namespace ddaebm
