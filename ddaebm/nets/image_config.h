#pragma once

#include <vector>

#include "ddaebm/config.h"
#include "ddaebm/ops/resample.h"

namespace ddaebm {

enum class ImageEncoder { convolutional, large };
enum class Precision { float32, tf32, bf16 };

// The paper's networks for images. Defaults are those for CIFAR-10: NCSN++ (FIR resampling and an
// input pyramid; DDPM++ is `resample = "box"`, `pyramid = false`).
struct ImageNetConfig {
  int64_t channels = 128;
  std::vector<int64_t> multipliers = {1, 2, 2, 2};
  int64_t blocks = 2;
  int64_t energy_blocks = 2;
  std::vector<int64_t> attention = {16};
  double dropout = 0.1;
  ops::Filter resample = ops::Filter::fir;
  bool pyramid = true;
  bool tanh = true;
  int64_t latent = 100;
  int64_t latent_width = 256;
  int64_t latent_layers = 4;
  ImageEncoder encoder = ImageEncoder::convolutional;
  int64_t encoder_width = 64;
  int64_t encoder_time = 256;
  Precision precision = Precision::float32;
  bool channels_last = true;

  void visit(Fields& f) {
    f("channels", channels, at_least(4), "channels of the U-Nets at full size");
    f("multipliers", multipliers, at_least(1), "channels at each halving, as multiples");
    f("blocks", blocks, at_least(1), "residual blocks a size in the generator");
    f("energy_blocks", energy_blocks, at_least(1), "the same in the energy");
    f("attention", attention, at_least(1), "image sizes at which there is attention");
    f("dropout", dropout, between(0, 0.9), "in the residual blocks of both U-Nets");
    f("resample", resample, {"fir", "box"}, "smoothing (1,3,3,1), or none, when sizes change");
    f("pyramid", pyramid, "whether halved inputs are fed in at every size");
    f("tanh", tanh, "whether the generator's output passes through tanh");
    f("latent", latent, at_least(1), "dimensions of z");
    f("latent_width", latent_width, at_least(1), "width of the network that maps z");
    f("latent_layers", latent_layers, at_least(0), "its layers after the first");
    f("encoder", encoder, {"convolutional", "large"},
      "halving to 4x4, or residual blocks with minibatch deviation, six halvings");
    f("encoder_width", encoder_width, at_least(1), "channels of the encoder's first layer");
    f("encoder_time", encoder_time, at_least(4), "width of the encoder's time embedding");
    f("precision", precision, {"float32", "tf32", "bf16"},
      "of convolutions; weights, energies, penalty and losses stay float32");
    f("channels_last", channels_last, "images in memory with their channels side by side");
  }
};

}  // namespace ddaebm
