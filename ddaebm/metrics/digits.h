#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <vector>

#include <torch/types.h>

namespace ddaebm {

// Reads MNIST digits: two 3x3 convolutions (32 and 64 channels), max-pool, two linear layers (128
// and 10).
class DigitClassifier {
 public:
  // float32 [N, 1, 28, 28] with values in [0, 1], which is what it is trained on -> int64 [N] on
  // the CPU. Any N, in batches.
  torch::Tensor labels(const torch::Tensor& pixels) const;
  // Share of the test images that it read right when it was trained.
  double test_accuracy() const { return test_accuracy_; }

  // A safetensors file, with the accuracy in its metadata.
  void save(const std::filesystem::path& path) const;
  static DigitClassifier load(const std::filesystem::path& path, torch::Device device);

 private:
  friend class DigitTraining;
  DigitClassifier() = default;
  torch::Tensor logits(const torch::Tensor& pixels, bool training) const;

  std::vector<torch::Tensor> parameters_;
  double test_accuracy_ = 0.0;
};

struct DigitSet {
  torch::Tensor pixels;  // uint8 [N, 1, 28, 28]
  torch::Tensor labels;  // [N], whole numbers 0..9
};

struct DigitTrainingConfig {
  int64_t epochs = 14;
  int64_t batch = 128;
  double lr = 1e-3;  // of Adam, falling to 0 on half a cosine
  uint64_t seed = 0;
};

// Iterations done and to do, and the last batch's loss.
using DigitProgress = std::function<void(int64_t done, int64_t total, double loss)>;

// Reseeds the device's default generator.
DigitClassifier train_digit_classifier(const DigitSet& training, const DigitSet& test,
                                       torch::Device device, const DigitTrainingConfig& config = {},
                                       const DigitProgress& progress = {});

// StackedMNIST: three digits in the channels of an image make one of 1000 modes.
struct ModeCount {
  int64_t samples = 0;
  int64_t modes = 0;  // with one sample at least
  double kl = 0.0;    // KL(samples' modes || uniform) in nats; empty modes contribute nothing
};
// Digits [N, 3] of N images.
ModeCount count_modes(const torch::Tensor& digits);

// float32 [N, 1, 28, 28] in [0, 1] -> int64 [N].
using DigitReader = std::function<torch::Tensor(const torch::Tensor&)>;
// Images [N, 3, 32, 32], uint8 or floats in [-1, 1] (what lies beyond is clamped); the outer 2
// pixels, which pad the digits, are cut off.
ModeCount count_stacked_modes(const DigitReader& reader, const torch::Tensor& images);
ModeCount count_stacked_modes(const DigitClassifier& classifier, const torch::Tensor& images);

}  // namespace ddaebm
