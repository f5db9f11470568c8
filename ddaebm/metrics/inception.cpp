#include "ddaebm/metrics/inception.h"

#include <algorithm>
#include <cstdlib>
#include <set>
#include <utility>

#include <ATen/Context.h>
#include <torch/nn/functional/upsampling.h>

#include "ddaebm/error.h"
#include "ddaebm/io/bytes.h"
#include "ddaebm/io/safetensors.h"
#include "ddaebm/tf32.h"

namespace ddaebm {
namespace {

using Kind = Inception::Kind;
using Layer = Inception::Layer;
using Chain = Inception::Chain;

constexpr int64_t kSide = 299;
constexpr int64_t kClasses = 1008;
constexpr const char* kPartialInception = "inception2015_to_mixed7.safetensors";

Layer convolution(int64_t out, int64_t height, int64_t width, int64_t stride = 1,
                  bool padded = true) {
  return {Kind::convolution, out, height, width, stride, padded, {}, {}, {}, {}};
}
Layer reducing(int64_t out) { return convolution(out, 3, 3, 2, false); }
Layer pool(Kind kind, int64_t stride, bool padded) {
  return {kind, 0, 3, 3, stride, padded, {}, {}, {}, {}};
}
Layer max_pool() { return pool(Kind::max_pool, 2, false); }
Layer average_pool() { return pool(Kind::average_pool, 1, true); }
Layer beside(std::vector<Chain> branches) {
  Layer layer;
  layer.kind = Kind::branches;
  layer.branches = std::move(branches);
  return layer;
}

// The file numbers the convolutions of a chain, conv, conv_1, conv_2 ..., and likewise those that
// lie side by side at its end: mixed_conv, mixed_conv_1.
Chain chain(const std::string& prefix, Chain layers) {
  int64_t n = 0;
  for (auto& layer : layers) {
    if (layer.kind == Kind::branches) {
      int64_t inner = 0;
      for (auto& branch : layer.branches) {
        branch[0].name = prefix + "mixed_conv" + (inner == 0 ? "" : "_" + std::to_string(inner));
        ++inner;
      }
    }
    if (layer.kind != Kind::convolution) continue;
    layer.name = prefix + "conv" + (n == 0 ? "" : "_" + std::to_string(n));
    ++n;
  }
  return layers;
}

// ... and calls the branches of a block conv (where it is one convolution), tower, tower_1,
// tower_2.
Layer mixed(const std::string& name, const std::vector<Chain>& branches) {
  Layer block = beside({});
  int64_t towers = 0;
  for (const auto& branch : branches) {
    std::string prefix = name + "_";
    if (branch.size() > 1 || branch[0].kind != Kind::convolution) {
      prefix += towers == 0 ? "tower_" : "tower_" + std::to_string(towers) + "_";
      ++towers;
    }
    block.branches.push_back(chain(prefix, branch));
  }
  return block;
}

Layer mixed_35x35(const std::string& name, int64_t pooled) {
  return mixed(name, {{convolution(64, 1, 1)},
                      {convolution(48, 1, 1), convolution(64, 5, 5)},
                      {convolution(64, 1, 1), convolution(96, 3, 3), convolution(96, 3, 3)},
                      {average_pool(), convolution(pooled, 1, 1)}});
}

Layer mixed_17x17(const std::string& name, int64_t inner) {
  return mixed(name, {{convolution(192, 1, 1)},
                      {convolution(inner, 1, 1), convolution(inner, 1, 7), convolution(192, 7, 1)},
                      {convolution(inner, 1, 1), convolution(inner, 7, 1), convolution(inner, 1, 7),
                       convolution(inner, 7, 1), convolution(192, 1, 7)},
                      {average_pool(), convolution(192, 1, 1)}});
}

Layer mixed_8x8(const std::string& name, const Layer& pooling) {
  const Layer both = beside({{convolution(384, 1, 3)}, {convolution(384, 3, 1)}});
  return mixed(name, {{convolution(320, 1, 1)},
                      {convolution(384, 1, 1), both},
                      {convolution(448, 1, 1), convolution(384, 3, 3), both},
                      {pooling, convolution(192, 1, 1)}});
}

// Grids of 35 x 35, 17 x 17 and, where the network is whole, 8 x 8.
Chain structure(bool whole) {
  Chain layers =
      chain("", {reducing(32), convolution(32, 3, 3, 1, false), convolution(64, 3, 3), max_pool(),
                 convolution(80, 1, 1), convolution(192, 3, 3, 1, false), max_pool()});
  const auto add = [&](const Chain& more) {
    layers.insert(layers.end(), more.begin(), more.end());
  };
  add({mixed_35x35("mixed", 32), mixed_35x35("mixed_1", 64), mixed_35x35("mixed_2", 64),
       mixed("mixed_3", {{reducing(384)},
                         {convolution(64, 1, 1), convolution(96, 3, 3), reducing(96)},
                         {max_pool()}}),
       mixed_17x17("mixed_4", 128), mixed_17x17("mixed_5", 160), mixed_17x17("mixed_6", 160),
       mixed_17x17("mixed_7", 192)});
  if (!whole) return layers;
  // The last block takes the maximum where all others average: a slip of 2015 that the published
  // weights, and so every FID, go with.
  add({mixed("mixed_8", {{convolution(192, 1, 1), reducing(320)},
                         {convolution(192, 1, 1), convolution(192, 1, 7), convolution(192, 7, 1),
                          reducing(192)},
                         {max_pool()}}),
       mixed_8x8("mixed_9", average_pool()), mixed_8x8("mixed_10", pool(Kind::max_pool, 1, true))});
  return layers;
}

class Weights {
 public:
  Weights(std::string file, std::map<std::string, torch::Tensor> tensors)
      : file_(std::move(file)), tensors_(std::move(tensors)) {}

  // Whether any name starts so.
  bool has(const std::string& start) const {
    const auto found = tensors_.lower_bound(start);
    return found != tensors_.end() && found->first.rfind(start, 0) == 0;
  }

  torch::Tensor take(const std::string& name, const std::vector<int64_t>& shape,
                     const torch::TensorOptions& options) {
    const auto found = tensors_.find(name);
    if (found == tensors_.end()) {
      fail("{}: there is no tensor '{}'; is this the Inception network of 2015-12-05, converted?",
           file_, name);
    }
    const torch::Tensor tensor = found->second;
    if (tensor.sizes() != at::IntArrayRef(shape) || !tensor.is_floating_point()) {
      fail("{}: tensor '{}' is {} [{}]; the network wants floating-point [{}]", file_, name,
           c10::toString(tensor.scalar_type()), fmt::join(tensor.sizes(), ", "),
           fmt::join(shape, ", "));
    }
    if (!tensor.to(torch::kFloat).isfinite().all().item<bool>()) {
      fail("{}: tensor '{}' holds numbers that are not finite; fetch the file again", file_, name);
    }
    hash(name);
    hash(bytes_of(packed(tensor)));
    tensors_.erase(found);
    return tensor.to(options);
  }

  void expect_all_taken() const {
    if (tensors_.empty()) return;
    fail("{}: {} tensors that the network does not have, first '{}'", file_, tensors_.size(),
         tensors_.begin()->first);
  }

  std::string fingerprint() const { return fmt::format("{:016x}", hash_); }

 private:
  // FNV-1a, 64 bits.
  void hash(std::string_view bytes) {
    for (const char byte : bytes) {
      hash_ = (hash_ ^ static_cast<unsigned char>(byte)) * 0x100000001b3U;
    }
  }

  std::string file_;
  std::map<std::string, torch::Tensor> tensors_;
  uint64_t hash_ = 0xcbf29ce484222325U;
};

// Fills in a chain's weights; returns how many channels come out.
int64_t fill(Chain& layers, int64_t channels, Weights& file, const torch::TensorOptions& options) {
  for (auto& layer : layers) {
    if (layer.kind == Kind::branches) {
      int64_t joined = 0;
      for (auto& branch : layer.branches) joined += fill(branch, channels, file, options);
      channels = joined;
    }
    if (layer.kind != Kind::convolution) continue;
    layer.weight = file.take(layer.name + ".weight",
                             {layer.out, channels, layer.height, layer.width}, options);
    layer.bias = file.take(layer.name + ".bias", {layer.out}, options);
    channels = layer.out;
  }
  return channels;
}

torch::Tensor apply(const Chain& layers, torch::Tensor x);

torch::Tensor apply(const Layer& layer, const torch::Tensor& x) {
  const std::vector<int64_t> window = {layer.height, layer.width};
  const std::vector<int64_t> padding =
      layer.padded ? std::vector{layer.height / 2, layer.width / 2} : std::vector<int64_t>{0, 0};
  const std::vector<int64_t> stride = {layer.stride, layer.stride};
  switch (layer.kind) {
    case Kind::convolution:
      return torch::conv2d(x, layer.weight, layer.bias, stride, padding).relu_();
    case Kind::max_pool:
      return torch::max_pool2d(x, window, stride, padding);
    case Kind::average_pool:
      return torch::avg_pool2d(x, window, stride, padding, /*ceil_mode=*/false,
                               /*count_include_pad=*/false);
    case Kind::branches: {
      std::vector<torch::Tensor> outputs;
      for (const auto& branch : layer.branches) outputs.push_back(apply(branch, x));
      return torch::cat(outputs, 1);
    }
  }
  TORCH_CHECK(false, "a layer of no known kind");
}

torch::Tensor apply(const Chain& layers, torch::Tensor x) {
  for (const auto& layer : layers) x = apply(layer, x);
  return x;
}

// Where the weights should be, and who said so.
std::pair<std::filesystem::path, const char*> wanted_place(const std::filesystem::path& given) {
  if (!given.empty()) return {given, "the settings"};
  if (const char* named = std::getenv("DDAEBM_INCEPTION"); named != nullptr && *named != '\0') {
    return {named, "DDAEBM_INCEPTION"};
  }
  std::error_code ignored;
  auto full = inception_folder() / kFullInception;
  auto partial = inception_folder() / kPartialInception;
  if (!std::filesystem::exists(full, ignored) && std::filesystem::exists(partial, ignored)) {
    return {std::move(partial), "the data folder"};
  }
  return {std::move(full), "the data folder"};
}

}  // namespace

std::filesystem::path inception_folder() {
  if (const char* given = std::getenv("DDAEBM_DATA"); given != nullptr && *given != '\0') {
    return given;
  }
  const char* home = std::getenv("HOME");
  return std::filesystem::path(home != nullptr ? home : ".") / ".cache" / "ddaebm";
}

std::string fid_name(int64_t width) { return width == 2048 ? "fid" : fmt::format("fid{}", width); }

Inception::Inception(const std::filesystem::path& weights, const torch::TensorOptions& options)
    : Inception(weights.string(), read_safetensors(weights).tensors, options) {}

Inception::Inception(const std::string& name, std::map<std::string, torch::Tensor> tensors,
                     const torch::TensorOptions& options)
    : options_(options.requires_grad(false)) {
  const auto type = c10::typeMetaToScalarType(options.dtype());
  TORCH_CHECK(type == torch::kFloat || type == torch::kDouble,
              "the Inception network runs in float32 or float64, not ", type);
  Weights file(name, std::move(tensors));
  const bool whole = file.has("mixed_8_") || file.has("logits.");
  layers_ = structure(whole);
  width_ = fill(layers_, 3, file, options_);
  settings_ = {
      {"network", whole ? "inception-2015-12-05, pool_3" : "inception-2015-12-05, mixed_7"},
      {"features", std::to_string(width_)},
      {"weights", file.fingerprint()},
      {"resize", "bilinear 299x299, corners not aligned"}};
  if (file.has("logits.")) {
    class_weight_ = file.take("logits.weight", {kClasses, width_}, options_);
    class_bias_ = file.take("logits.bias", {kClasses}, options_);
  }
  file.expect_all_taken();
}

torch::Tensor Inception::forward(const torch::Tensor& images) const {
  namespace F = torch::nn::functional;
  auto x = F::interpolate(images.to(options_), F::InterpolateFuncOptions()
                                                   .size(std::vector<int64_t>{kSide, kSide})
                                                   .mode(torch::kBilinear)
                                                   .align_corners(false));
  x = x / 127.5 - 1;
  return apply(layers_, x).mean({2, 3});
}

torch::Tensor Inception::features(const torch::Tensor& images) const {
  TORCH_CHECK(images.dim() == 4 && images.size(1) == 3 && images.scalar_type() == torch::kByte &&
                  images.size(2) > 0 && images.size(3) > 0,
              "features of ", images.scalar_type(), " ", images.sizes(),
              "; uint8 [N, 3, H, W] is wanted");
  const torch::NoGradGuard no_grad;
  // TF32 would cost three digits of the features for a second or two of time.
  const AllowTf32 full_precision(false);
  // On a CPU an image's largest unfolded convolution takes 25 MB.
  const int64_t batch = options_.device().is_cuda() ? 128 : 8;
  std::vector<torch::Tensor> parts = {torch::empty({0, width_}, options_)};
  for (int64_t first = 0; first < images.size(0); first += batch) {
    const auto part = images.narrow(0, first, std::min(batch, images.size(0) - first));
    parts.push_back(forward(part.to(options_.device())));
  }
  return torch::cat(parts);
}

torch::Tensor Inception::logits(const torch::Tensor& features) const {
  TORCH_CHECK(has_logits(), "the weight file has no layer of classes");
  const torch::NoGradGuard no_grad;
  const AllowTf32 full_precision(false);
  return torch::addmm(class_bias_, features.to(options_), class_weight_.t());
}

std::optional<std::filesystem::path> find_inception(const std::filesystem::path& given) {
  const auto place = wanted_place(given).first;
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(place, ignored)) return std::nullopt;
  return place;
}

std::filesystem::path inception_path(const std::filesystem::path& given) {
  if (const auto found = find_inception(given)) return *found;
  const auto [place, who] = wanted_place(given);
  fail(
      "{}: the weights of the Inception network are not there (named by {}); `ddaebm import "
      "pt_inception-2015-12-05-6726825d.pth` makes them of pytorch-fid's file, or name another "
      "with "
      "DDAEBM_INCEPTION",
      place.string(), who);
}

}  // namespace ddaebm
