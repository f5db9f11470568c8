#include "ddaebm/nets/unet.h"

#include <algorithm>
#include <limits>

#include "ddaebm/error.h"
#include "ddaebm/nets/mlp.h"
#include "ddaebm/ops/branches.h"
#include "ddaebm/ops/cast.h"

namespace ddaebm {

bool UNetImpl::attends(int64_t size) const {
  return std::find(config_.attention.begin(), config_.attention.end(), size) !=
         config_.attention.end();
}

UNetImpl::UNetImpl(int64_t image_channels, int64_t size, int64_t steps, int64_t blocks,
                   int64_t latent_width, const ImageNetConfig& config)
    : config_(config) {
  if (config.multipliers.empty()) {
    fail("image_net.multipliers is empty; give one number for each size, such as [1, 2, 2, 2]");
  }
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
  place_layers();
}

void UNetImpl::place_layers() {
  size_t weights = 0;
  for (const auto& module : modules(/*include_self=*/false)) {
    if (auto* conv = module->as<ConvImpl>()) {
      conv->place = weights++;
      weighted_.push_back(conv);
    } else if (auto* attention = module->as<AttentionImpl>()) {
      attention->place = weights;
      weights += attention->maps.size();
      weighted_.push_back(attention);
    } else if (auto* block = module->as<ResidualBlockImpl>()) {
      block->place = timed_.size();
      timed_.push_back(block);
    } else if (auto* norm = module->as<Norm2dImpl>()) {
      styled_.push_back(norm);
    }
  }
  ended_ = timed_;
  std::stable_partition(ended_.begin(), ended_.end(),
                        [](auto* block) { return bool(block->skip); });
  for (size_t i = 0; i < ended_.size(); ++i) ended_[i]->end = i;
  std::stable_partition(styled_.begin(), styled_.end(),
                        [](auto* norm) { return bool(norm->style); });
  for (size_t i = 0; i < styled_.size(); ++i) styled_[i]->place = 2 * i;
}

// One product for the times of all blocks, one for the styles of all norms, one cast for all
// weights: many small operations cost more than few large ones. What all images share is repeated
// for each without memory, so that one sum over images serves all of its gradients.
Pass UNetImpl::begin(const torch::Tensor& x, const torch::Tensor& t, const torch::Tensor& latent) {
  using Tensors = std::vector<torch::Tensor>;
  Pass pass;
  Tensors weights;
  for (auto* module : weighted_) {
    if (const auto* conv = module->as<ConvImpl>()) {
      weights.push_back(conv->weight);
    } else {
      const auto& maps = module->as<AttentionImpl>()->maps;
      weights.insert(weights.end(), maps.begin(), maps.end());
    }
  }
  pass.weights = ops::cast_all(weights, x.scalar_type());

  Tensors matrices, biases, more;
  std::vector<int64_t> sizes;
  for (const auto* block : timed_) {
    matrices.push_back(block->time->weight);
    biases.push_back(block->time->bias);
    more.push_back(block->conv0->bias);
    sizes.push_back(block->time->bias.size(0));
  }
  // What depends on t alone is done once a time.
  const auto time = at::silu(time1_(at::silu(time0_(embeddings_))));  // [T, time width]
  pass.biases = at::linear(time, at::cat(matrices), at::cat(biases) + at::cat(more))
                    .index_select(0, t)
                    .split_with_sizes(sizes, 1);

  const auto for_images = [&](const torch::Tensor& all) {
    return all.expand({x.size(0), all.size(0)});
  };
  Tensors of_skips, beside_skips, alone;
  sizes.clear();
  for (const auto* block : ended_) {
    (block->skip ? beside_skips : alone).push_back(block->conv1->bias);
    if (block->skip) of_skips.push_back(block->skip->bias);
    sizes.push_back(block->conv1->bias.size(0));
  }
  alone.insert(alone.begin(), at::cat(beside_skips) + at::cat(of_skips));
  pass.ends = for_images(at::cat(alone)).split_with_sizes(sizes, 1);

  matrices.clear();
  biases.clear();
  sizes.clear();
  Tensors own;
  std::vector<int64_t> own_sizes;
  for (const auto* norm : styled_) {
    if (norm->style) {
      matrices.push_back(norm->style->weight);
      biases.push_back(norm->style->bias);
    } else {
      own.push_back(norm->scale);
      own.push_back(norm->shift);
    }
    auto& of_kind = norm->style ? sizes : own_sizes;
    of_kind.insert(of_kind.end(), 2, norm->channels());
  }
  if (!matrices.empty()) {
    pass.styles = at::linear(latent, at::cat(matrices), at::cat(biases)).split_with_sizes(sizes, 1);
  }
  const auto own_styles = for_images(at::cat(own)).split_with_sizes(own_sizes, 1);
  pass.styles.insert(pass.styles.end(), own_styles.begin(), own_styles.end());
  if (is_training() && config_.dropout > 0) {
    pass.seed = at::randint(std::numeric_limits<int64_t>::max(), {1}, x.options().dtype(at::kLong));
  }
  return pass;
}

torch::Tensor UNetImpl::entered(const torch::Tensor& x) { return x.is_cuda() ? filled_up(x) : x; }

torch::Tensor UNetImpl::after_block(Level& level, size_t block, const torch::Tensor& x,
                                    const Pass& pass) {
  const auto h = level.blocks[block](x, pass);
  return level.attention.empty() ? h : level.attention[block](h, pass);
}

namespace {

// h [N, C, H, W] -> [N, 4 C]. Texture, wherever in the image it is.
torch::Tensor texture(const torch::Tensor& h) {
  constexpr double kFlat = 1e-12;  // a variance that no image with anything on it has
  const auto x = h.to(torch::promote_types(h.scalar_type(), torch::kFloat));
  const auto over_pixels = [](const torch::Tensor& y) { return y.mean(at::IntArrayRef({2, 3})); };
  const auto mean = over_pixels(x);
  const auto centred = x - mean.unsqueeze(2).unsqueeze(3);
  const auto variance = over_pixels(centred.square()).clamp_min(kFlat);
  const auto in_common = [&](int64_t axis) {
    const int64_t pairs = x.size(axis) - 1;
    return over_pixels(centred.narrow(axis, 0, pairs) * centred.narrow(axis, 1, pairs)) / variance;
  };
  return at::cat({mean, 0.5 * variance.log(), in_common(3), in_common(2)}, 1);
}

}  // namespace

torch::Tensor UNetImpl::features(const torch::Tensor& x, const torch::Tensor& t) {
  // More channels tell hardly more, and ask for more data to learn from.
  constexpr int64_t kEnough = 32;
  std::vector<torch::Tensor> found;
  pass_through(x, t, {}, [&](const torch::Tensor& h) {
    found.push_back(texture(h.slice(1, 0, std::min(h.size(1), kEnough))));
  });
  return at::cat(found, 1);
}

torch::Tensor UNetImpl::forward(const torch::Tensor& x, const torch::Tensor& t,
                                const torch::Tensor& latent) {
  return pass_through(x, t, latent, [](const torch::Tensor&) {});
}

torch::Tensor UNetImpl::pass_through(const torch::Tensor& x, const torch::Tensor& t,
                                     const torch::Tensor& latent,
                                     const std::function<void(const torch::Tensor&)>& look) {
  const Pass pass = begin(x, t, latent);
  auto pyramid = entered(x);
  std::vector<torch::Tensor> skips = {in_->within(pass, pyramid)};
  for (Level& level : down_) {
    for (size_t b = 0; b < level.blocks.size(); ++b) {
      skips.push_back(after_block(level, b, skips.back(), pass));
    }
    if (&level == &down_.front()) look(skips.back());
    if (!level.resize) continue;
    auto h = level.resize(skips.back(), pass);
    if (level.pyramid) {
      pyramid = level.pyramid(pyramid, h, pass);
      h = pyramid;
    }
    skips.push_back(h);
  }
  auto h = middle0_(skips.back(), pass);
  h = middle1_(middle_attention_(h, pass), pass);
  for (size_t i = up_.size(); i-- > 0;) {
    Level& level = up_[i];
    for (auto& block : level.blocks) {
      h = block(ops::concatenate(h, skips.back()), pass);
      skips.pop_back();
    }
    if (!level.attention.empty()) h = level.attention.front()(h, pass);
    if (level.resize) h = level.resize(h, pass);
  }
  look(h);
  return out_->within(pass, out_norm_(h, pass));
}

}  // namespace ddaebm
