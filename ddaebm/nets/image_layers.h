#pragma once

#include <vector>

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>

#include "ddaebm/ops/conv.h"
#include "ddaebm/ops/group_norm.h"
#include "ddaebm/ops/resample.h"

namespace ddaebm {

// The layers of the image networks. Images x are [N, C, H, W]; parameters stay in the type that
// their owner keeps them in and are cast to the images' where they meet.

// How a layer's weights begin: uniform with variance scale / mean of fan in and fan out, biases
// zero, as in Score SDE and DDGAN; or LibTorch's own, uniform within 1 / sqrt(fan in).
struct Init {
  enum Kind { fan_average, libtorch } kind = fan_average;
  double scale = 1.0;  // 0: as good as zero
};

struct LinearImpl : torch::nn::Module {
  LinearImpl(int64_t in, int64_t out);
  torch::Tensor forward(const torch::Tensor& x);  // [N, in] -> [N, out]
  torch::Tensor weight, bias;
};
TORCH_MODULE(Linear);

// What one pass through a U-Net makes once for all of its layers, each of which knows its place in
// these lists.
struct Pass {
  std::vector<torch::Tensor> weights;  // of convolutions and attention, in the images' type
  std::vector<torch::Tensor> biases;   // [N, C] of blocks, from the time and the convolution's own
  std::vector<torch::Tensor> ends;     // [N, C] of blocks, the biases of their last convolutions
  std::vector<torch::Tensor> styles;   // [N, C], scale and shift of each norm
  torch::Tensor seed;                  // of dropout
};

// An image's few channels filled up to eight with ones, for GPUs: their library has fast
// convolutions of multiples of eight channels alone, and a bias is the weight of a one.
torch::Tensor filled_up(const torch::Tensor& x);

// Takes images that were filled up too.
struct ConvImpl : torch::nn::Module {
  ConvImpl(int64_t in, int64_t out, int64_t kernel, ops::ConvShape shape, Init init = {},
           bool with_bias = true);
  torch::Tensor forward(const torch::Tensor& x);
  torch::Tensor within(const Pass& pass, const torch::Tensor& x);
  // The bias is left to what follows.
  torch::Tensor without_bias(const Pass& pass, const torch::Tensor& x);
  torch::Tensor weight, bias;
  size_t place = 0;  // in Pass::weights

 private:
  // With zeros for the ones that x was filled up with.
  torch::Tensor weight_for(const Pass& pass, const torch::Tensor& x) const;
  ops::ConvShape shape_;
};
TORCH_MODULE(Conv);

// Group norm with min(C / 4, 32) groups, followed by SiLU where asked for. With a latent width,
// scale and shift are linear in the latent's map.
struct Norm2dImpl : torch::nn::Module {
  Norm2dImpl(int64_t channels, int64_t latent_width, bool silu);
  torch::Tensor forward(const torch::Tensor& x, const Pass& pass);
  ops::NormAndInput and_input(const torch::Tensor& x, const Pass& pass);
  // The norm of x + add [N, C], with dropout.
  torch::Tensor of_sum(const torch::Tensor& x, const torch::Tensor& add,
                       const ops::Dropout& dropout, const Pass& pass);
  int64_t channels() const { return channels_; }
  torch::Tensor scale, shift;  // [C]; undefined with a latent
  Linear style{nullptr};       // [N, latent width] -> scales and shifts
  size_t place = 0;            // of its scale in Pass::styles, the shift follows

 private:
  int64_t channels_;
  ops::GroupNormConfig config_;
};
TORCH_MODULE(Norm2d);

enum class Resize { none, halve, twice };

// BigGAN's residual block: norm, resize, convolution, time as a bias, norm, dropout, convolution;
// the sum with the (resized) input over sqrt 2.
struct ResidualBlockImpl : torch::nn::Module {
  struct Options {
    int64_t in, out, time_width, latent_width;
    double dropout;
    ops::Filter filter;
    Resize resize = Resize::none;
  };
  explicit ResidualBlockImpl(const Options& options);
  torch::Tensor forward(const torch::Tensor& x, const Pass& pass);
  Conv conv0{nullptr};
  Linear time{nullptr};  // of silu of the time's embedding, [N, time width]
  Conv conv1{nullptr};
  Conv skip{nullptr};  // of the input, where it must change; else none
  size_t place = 0;    // in Pass::biases
  size_t end = 0;      // in Pass::ends

 private:
  torch::Tensor resized(const torch::Tensor& x) const;
  Options options_;
  Norm2d norm0_{nullptr}, norm1_{nullptr};
};
TORCH_MODULE(ResidualBlock);

// One head of attention over all pixels, added to its input over sqrt 2.
struct AttentionImpl : torch::nn::Module {
  explicit AttentionImpl(int64_t channels);
  torch::Tensor forward(const torch::Tensor& x, const Pass& pass);
  // Weight [C in, C out] and bias [C] of query, key, value and output.
  std::vector<torch::Tensor> maps;
  size_t place = 0;  // of the first in Pass::weights

 private:
  Norm2d norm_{nullptr};
};
TORCH_MODULE(Attention);

// The input pyramid's way down one size: a 3x3 convolution of stride 2, smoothed before with FIR;
// its sum with the network's own features h over sqrt 2.
struct PyramidStepImpl : torch::nn::Module {
  PyramidStepImpl(int64_t in, int64_t out, ops::Filter filter);
  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& h, const Pass& pass);

 private:
  ops::Filter filter_;
  Conv conv_{nullptr};
};
TORCH_MODULE(PyramidStep);

// z / root mean square of its entries, row by row.
torch::Tensor pixel_norm(const torch::Tensor& z);

}  // namespace ddaebm
