#pragma once

#include <vector>

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>

#include "ddaebm/config.h"
#include "ddaebm/ops/timed_chain.h"

namespace ddaebm {

// NICE, a flow whose density is exact: couplings that add to one half of x what a network makes of
// the other half, by turns, then a scale for each coordinate; a standard Gaussian is what comes
// out. With a time embedding it is the paper's NICE_t: every hidden layer adds PReLU(FC(SE(t))).
struct NiceConfig {
  enum Activation { softplus, prelu };
  int64_t couplings = 4;
  std::vector<int64_t> hidden = {1000, 1000, 1000, 1000};  // of each coupling's network
  Activation activation = prelu;
  int64_t embedding = 16;  // of the time; 0: the flow knows no time

  void visit(Fields& f) {
    f("couplings", couplings, at_least(1), "additive couplings, whose halves take turns");
    f("hidden", hidden, at_least(1), "hidden widths of each coupling's network");
    f("activation", activation, {"softplus", "prelu"}, "of hidden layers");
    f("embedding", embedding, at_least(0), "width of the time embedding; 0: no time");
  }
};

// x [N, D], D even; t [N] int64, not looked at without a time embedding.
struct NiceImpl : torch::nn::Module {
  NiceImpl(int64_t dimension, int64_t steps, const NiceConfig& config);
  // What is Gaussian, [N, D].
  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& t = {}) const;
  torch::Tensor inverse(const torch::Tensor& y, const torch::Tensor& t = {}) const;
  // log p(x), normalised, [N].
  torch::Tensor log_density(const torch::Tensor& x, const torch::Tensor& t = {}) const;

  // One layer of a coupling's network; what is not there is undefined.
  struct Layer {
    torch::Tensor weight, bias, slope;  // slope: of a PReLU
    torch::Tensor time_weight, time_bias, time_slope;
  };
  using Couplings = std::vector<std::vector<ops::TimedDense>>;
  std::vector<std::vector<Layer>> couplings;  // the last layer of each is linear
  torch::Tensor scale;                        // [D], logarithms

 private:
  // The couplings with what each time adds to their hidden layers.
  Couplings timed_couplings() const;
  NiceConfig config_;
  torch::Tensor embeddings_;  // [T, embedding]
};
TORCH_MODULE(Nice);

}  // namespace ddaebm
