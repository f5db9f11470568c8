#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>

#include "ddaebm/nets/image_config.h"
#include "ddaebm/nets/image_layers.h"

namespace ddaebm {

// The U-Net of NCSN++ and DDPM++, one for generator and energy: BigGAN residual blocks with the
// time as a bias, attention, an input pyramid. With a latent width its norms adapt to the latent's
// map [N, latent width], otherwise they have scales and shifts of their own.
// x [N, C, S, S], t [N] -> [N, C, S, S].
struct UNetImpl : torch::nn::Module {
  UNetImpl(int64_t image_channels, int64_t size, int64_t steps, int64_t blocks,
           int64_t latent_width, const ImageNetConfig& config);
  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& t,
                        const torch::Tensor& latent = {});
  // How the textures of x look to the network, at full size, on the way in and on the way out: of
  // up to 32 channels of both, each one's mean over all pixels, the logarithm of its standard
  // deviation, and how much neighbours along lines, and along columns, have in common, [N, 8
  // channels].
  torch::Tensor features(const torch::Tensor& x, const torch::Tensor& t);

 private:
  // The forward pass; `look` is shown what the first blocks, and the last ones, make of x.
  torch::Tensor pass_through(const torch::Tensor& x, const torch::Tensor& t,
                             const torch::Tensor& latent,
                             const std::function<void(const torch::Tensor&)>& look);
  bool attends(int64_t size) const;
  void place_layers();
  Pass begin(const torch::Tensor& x, const torch::Tensor& t, const torch::Tensor& latent);

  ImageNetConfig config_;
  torch::Tensor embeddings_;  // [T, channels]
  Linear time0_{nullptr}, time1_{nullptr};
  Conv in_{nullptr};
  struct Level {
    std::vector<ResidualBlock> blocks;
    std::vector<Attention> attention;  // after each block going down, after all going up; or none
    ResidualBlock resize{nullptr};     // to the next level
    PyramidStep pyramid{nullptr};
  };
  // x after a block going down and the attention that follows it.
  static torch::Tensor after_block(Level& level, size_t block, const torch::Tensor& x,
                                   const Pass& pass);
  // x as the first convolution and the pyramid take it.
  static torch::Tensor entered(const torch::Tensor& x);
  std::vector<Level> down_, up_;  // from full size on; up_[i] stands beside down_[i]
  ResidualBlock middle0_{nullptr}, middle1_{nullptr};
  Attention middle_attention_{nullptr};
  Norm2d out_norm_{nullptr};
  Conv out_{nullptr};
  // Layers whose parameters a pass gathers, in the order of their places.
  std::vector<torch::nn::Module*> weighted_;  // convolutions and attention
  std::vector<ResidualBlockImpl*> timed_;
  std::vector<ResidualBlockImpl*> ended_;  // those with a convolution on their skip first
  std::vector<Norm2dImpl*> styled_;        // those that adapt first
};
TORCH_MODULE(UNet);

}  // namespace ddaebm
