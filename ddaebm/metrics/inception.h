#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <torch/types.h>

namespace ddaebm {

// The Inception network of 2015-12-05, with which FID is measured, as far as the weight file goes:
// to its end, 2048 features an image, or to mixed_7, 768. A distance of the latter is FID-768,
// never to be set beside the published FIDs, which are of the 2048.
class Inception {
 public:
  // `weights` is a safetensors file of NAME.weight [out, in, height, width] and NAME.bias [out],
  // batch norm folded in. They are kept in the type (float32 or float64) and on the device given.
  Inception(const std::filesystem::path& weights, const torch::TensorOptions& options);
  // The same of tensors at hand; `name` starts errors.
  Inception(const std::string& name, std::map<std::string, torch::Tensor> tensors,
            const torch::TensorOptions& options);

  // uint8 [N, 3, H, W] on any device -> [N, width()] on the network's: pixels brought to 299 x 299
  // (bilinear, corners not aligned) and [-1, 1], the last block averaged over space. Any N; in
  // batches that fit into memory, without gradients.
  torch::Tensor features(const torch::Tensor& images) const;
  int64_t width() const { return width_; }

  // Features [N, 2048] -> the classes' logits [N, 1008], where the file has that layer.
  torch::Tensor logits(const torch::Tensor& features) const;
  bool has_logits() const { return class_weight_.defined(); }

  // What makes the features what they are: network, a hash of its weights, how images are resized.
  // Statistics are stored with it.
  const std::map<std::string, std::string>& settings() const { return settings_; }

  // One convolution (with ReLU) or pool, or chains of layers side by side whose outputs are joined.
  enum class Kind { convolution, max_pool, average_pool, branches };
  struct Layer {
    Kind kind = Kind::convolution;
    int64_t out = 0;  // channels
    int64_t height = 1, width = 1;
    int64_t stride = 1;
    bool padded = true;
    std::string name;
    torch::Tensor weight, bias;
    std::vector<std::vector<Layer>> branches;
  };
  using Chain = std::vector<Layer>;

 private:
  torch::Tensor forward(const torch::Tensor& images) const;

  torch::TensorOptions options_;
  Chain layers_;
  torch::Tensor class_weight_, class_bias_;
  int64_t width_ = 0;
  std::map<std::string, std::string> settings_;
};

// "fid" of 2048 features, "fid768" of 768.
std::string fid_name(int64_t width);

constexpr const char* kFullInception = "inception2015.safetensors";

// The folder of DDAEBM_DATA, else ~/.cache/ddaebm.
std::filesystem::path inception_folder();
// Where the weights are: `given` where it is not empty, else the environment's DDAEBM_INCEPTION,
// else inception2015.safetensors in that folder, else inception2015_to_mixed7.safetensors there.
// Nothing where there is no such file.
std::optional<std::filesystem::path> find_inception(const std::filesystem::path& given = {});
// The same, or an Error that says where the file was looked for and what to do.
std::filesystem::path inception_path(const std::filesystem::path& given = {});

}  // namespace ddaebm
