#pragma once

#include <vector>

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>

#include "ddaebm/config.h"
#include "ddaebm/nets/mlp.h"

namespace ddaebm {

struct GlowConfig {
  int64_t couplings = 5;
  std::vector<int64_t> hidden = {300, 300};

  void visit(Fields& f) {
    f("couplings", couplings, at_least(1), "affine couplings");
    f("hidden", hidden, at_least(1), "hidden widths of each coupling's network");
  }
};

// Glow for vectors of two or more dimensions: a flow of steps, each a scale and shift of every
// coordinate, an orthogonal map, and an affine coupling, which scales and shifts the second half of
// the coordinates by what a network makes of the first. The orthogonal map turns the coordinates'
// order round and then reflects by a learned vector. It stands for Glow's learned linear map,
// without the inverse of a matrix.
struct GlowImpl : torch::nn::Module {
  GlowImpl(int64_t dimension, const GlowConfig& config);

  struct Moved {
    torch::Tensor to;       // [N, D]
    torch::Tensor log_det;  // of the derivative of `to` in what was given, [N]
  };
  // x to what is Gaussian, and back.
  Moved forward(const torch::Tensor& x);
  Moved inverse(const torch::Tensor& y);
  // log p(x), normalised, [N].
  torch::Tensor log_density(const torch::Tensor& x);
  // n points from noise [n, D], and their log-densities.
  struct Drawn {
    torch::Tensor x, log_density;
  };
  Drawn draw(const torch::Tensor& noise);

 private:
  struct Step {
    torch::Tensor log_scale, shift;  // [D]
    torch::Tensor mirror;            // [D], the reflection's vector
    Mlp net = nullptr;
  };
  struct Affine {
    torch::Tensor log_scale, shift;
  };
  static Affine affine(Step& step, const torch::Tensor& stays);

  std::vector<Step> steps_;
};
TORCH_MODULE(Glow);

}  // namespace ddaebm
