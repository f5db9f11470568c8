#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <torch/types.h>

namespace ddaebm {

// The Inception network of 2015-12-05, with which FID is measured, as far as mixed_7: 768 features
// an image. A distance of these is FID-768, never to be set beside the published FIDs, which are of
// the 2048 features of the network's end.
class Inception {
 public:
  // `weights` is a safetensors file of NAME.weight [out, in, height, width] and NAME.bias [out],
  // batch norm folded in. They are kept in the type (float32 or float64) and on the device given.
  Inception(const std::filesystem::path& weights, const torch::TensorOptions& options);

  // uint8 [N, 3, H, W] on any device -> [N, width()] on the network's: pixels brought to 299 x 299
  // (bilinear, corners not aligned) and [-1, 1], the last block averaged over space. Any N; in
  // batches that fit into memory, without gradients.
  torch::Tensor features(const torch::Tensor& images) const;
  int64_t width() const { return width_; }

  // What makes the features what they are: network, a hash of its weights, how images are resized.
  // Statistics are stored with it.
  const std::map<std::string, std::string>& settings() const { return settings_; }

  // One convolution (with ReLU) or pool, a chain of them, and chains side by side whose outputs are
  // joined: the network is a list of blocks.
  enum class Kind { convolution, max_pool, average_pool };
  struct Layer {
    Kind kind = Kind::convolution;
    int64_t out = 0;  // channels
    int64_t height = 1, width = 1;
    int64_t stride = 1;
    bool padded = true;
    std::string name;
    torch::Tensor weight, bias;
  };
  using Branch = std::vector<Layer>;
  using Block = std::vector<Branch>;

 private:
  torch::Tensor forward(const torch::Tensor& images) const;

  torch::TensorOptions options_;
  std::vector<Block> blocks_;
  int64_t width_ = 0;
  std::map<std::string, std::string> settings_;
};

// Where the weights are: `given` where it is not empty, else the environment's DDAEBM_INCEPTION,
// else inception2015_to_mixed7.safetensors in the data folder (DDAEBM_DATA, else ~/.cache/ddaebm).
// Nothing where there is no such file.
std::optional<std::filesystem::path> find_inception(const std::filesystem::path& given = {});
// The same, or an Error that says where the file was looked for and what to do.
std::filesystem::path inception_path(const std::filesystem::path& given = {});

}  // namespace ddaebm
