#include "ddaebm/nets/unet.h"

#include <algorithm>
#include <numbers>

#include "ddaebm/error.h"
#include "ddaebm/nets/mlp.h"

namespace ddaebm {

bool UNetImpl::attends(int64_t size) const {
  return std::find(config_.attention.begin(), config_.attention.end(), size) !=
         config_.attention.end();
}

UNetImpl::UNetImpl(int64_t image_channels, int64_t size, int64_t steps, int64_t blocks,
                   int64_t latent_width, const ImageNetConfig& config)
    : config_(config), size_(size), blocks_(blocks) {
  const auto levels = static_cast<int64_t>(config.multipliers.size());
  if (size % (int64_t{1} << (levels - 1)) != 0) {
    fail(
        "images of {0}x{0} cannot be halved {1} times; give fewer image_net.multipliers, or set "
        "data.size to a multiple of {2}",
        size, levels - 1, int64_t{1} << (levels - 1));
  }
  const int64_t time_width = 4 * config.channels;
  const auto block = [&](const std::string& name, int64_t in, int64_t out,
                         Resize resize = Resize::none) {
    return register_module(
        name, ResidualBlock(ResidualBlockImpl::Options{in, out, time_width, latent_width,
                                                       config.dropout, config.resample, resize}));
  };
  const auto attention = [&](const std::string& name, int64_t channels) {
    return register_module(name, Attention(channels));
  };
  const ops::ConvShape same{.stride = 1, .padding = 1};

  embeddings_ = register_buffer("embeddings", time_embeddings(steps, config.channels));
  time0_ = register_module("time0", Linear(config.channels, time_width));
  time1_ = register_module("time1", Linear(time_width, time_width));
  in_ = register_module("in", Conv(image_channels, config.channels, 3, same));

  int64_t width = config.channels;
  int64_t pyramid_width = image_channels;
  std::vector<int64_t> skips = {width};
  for (int64_t i = 0; i < levels; ++i) {
    Level level;
    const std::string name = fmt::format("down{}_", i);
    const int64_t out = config.channels * config.multipliers[static_cast<size_t>(i)];
    for (int64_t b = 0; b < blocks; ++b) {
      level.blocks.push_back(block(name + fmt::format("block{}", b), width, out));
      width = out;
      if (attends(size >> i)) {
        level.attention.push_back(attention(name + fmt::format("attention{}", b), width));
      }
      skips.push_back(width);
    }
    if (i + 1 < levels) {
      level.resize = block(name + "halve", width, width, Resize::halve);
      if (config.pyramid) {
        level.pyramid =
            register_module(name + "pyramid", PyramidStep(pyramid_width, width, config.resample));
        pyramid_width = width;
      }
      skips.push_back(width);
    }
    down_.push_back(level);
  }
  middle0_ = block("middle_block0", width, width);
  middle_attention_ = attention("middle_attention", width);
  middle1_ = block("middle_block1", width, width);
  up_.resize(static_cast<size_t>(levels));
  for (int64_t i = levels - 1; i >= 0; --i) {
    Level& level = up_[static_cast<size_t>(i)];
    const std::string name = fmt::format("up{}_", i);
    const int64_t out = config.channels * config.multipliers[static_cast<size_t>(i)];
    for (int64_t b = 0; b <= blocks; ++b) {
      level.blocks.push_back(block(name + fmt::format("block{}", b), width + skips.back(), out));
      skips.pop_back();
      width = out;
    }
    if (attends(size >> i)) level.attention.push_back(attention(name + "attention", width));
    if (i > 0) level.resize = block(name + "twice", width, width, Resize::twice);
  }
  out_norm_ = register_module("out_norm", Norm2d(width, 0, true));
  out_ = register_module("out", Conv(width, image_channels, 3, same, Init{.scale = 0.0}));
}

torch::Tensor UNetImpl::forward(const torch::Tensor& x, const torch::Tensor& t,
                                const torch::Tensor& latent) {
  // What depends on t alone is done once a time.
  const auto time =
      at::silu(time1_(at::silu(time0_(embeddings_)))).index_select(0, t);  // [N, time width]
  std::vector<torch::Tensor> skips = {in_(x)};
  auto pyramid = x;
  for (Level& level : down_) {
    for (size_t b = 0; b < level.blocks.size(); ++b) {
      auto h = level.blocks[b](skips.back(), time, latent);
      if (!level.attention.empty()) h = level.attention[b](h);
      skips.push_back(h);
    }
    if (!level.resize) continue;
    auto h = level.resize(skips.back(), time, latent);
    if (level.pyramid) {
      pyramid = (level.pyramid(pyramid) + h) * (std::numbers::sqrt2 / 2);
      h = pyramid;
    }
    skips.push_back(h);
  }
  auto h = middle0_(skips.back(), time, latent);
  h = middle1_(middle_attention_(h), time, latent);
  for (size_t i = up_.size(); i-- > 0;) {
    Level& level = up_[i];
    for (auto& block : level.blocks) {
      h = block(torch::cat({h, skips.back()}, 1), time, latent);
      skips.pop_back();
    }
    if (!level.attention.empty()) h = level.attention.front()(h);
    if (level.resize) h = level.resize(h, time, latent);
  }
  return out_(out_norm_(h));
}

}  // namespace ddaebm
