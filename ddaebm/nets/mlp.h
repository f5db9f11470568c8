#pragma once

#include <vector>

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>

#include "ddaebm/config.h"
#include "ddaebm/nets/nice.h"
#include "ddaebm/ops/time_mlp.h"

namespace ddaebm {

// Where batch norm stands in a hidden layer: the authors' code has it before the PReLU, the paper's
// table after it.
enum class Norm { before, after, none };

// Networks are made in float64 on the CPU; their owner moves them with Module::to.

// Linear layers of the given widths; PReLU, and batch norm where asked for, after each but the
// last. x [N, in] -> [N, widths.back()].
struct MlpImpl : torch::nn::Module {
  MlpImpl(int64_t in, const std::vector<int64_t>& widths, Norm norm);
  // Differentiable at will.
  torch::Tensor forward(const torch::Tensor& x) const;
  const std::vector<ops::Dense>& layers() const { return layers_; }
  // Norms, in training, over a batch of which a part is elsewhere.
  void spread_batch(const ops::SpreadBatch& spread) { *spread_ = spread; }

 private:
  Norm norm_;
  std::shared_ptr<ops::SpreadBatch> spread_ = std::make_shared<ops::SpreadBatch>();
  std::vector<ops::Dense> layers_;
};
TORCH_MODULE(Mlp);

// Sinusoidal embeddings of t = 0..steps-1: [steps, width], sines then cosines of t over wavelengths
// from 2 pi to 10000 * 2 pi.
torch::Tensor time_embeddings(int64_t steps, int64_t width);

// Hidden widths of one network: a branch for x, one for t, and what joins them.
struct TimeMlpWidths {
  std::vector<int64_t> x_branch, t_branch, trunk;
  bool branch_norm = true;  // whether norms, where there are any, are in the branch for x too
};

// The paper's: a branch for x, one for t, and what joins them, with PReLUs; or waves of x, with
// SiLUs and no norms.
enum class LayerKind { branches, waves };
// A network by layers, or a flow, whose density is exact.
enum class EnergyKind { mlp, nice };

// The networks for vectors. What is left empty is as in the first of each kind.
struct MlpConfig {
  LayerKind layers = LayerKind::branches;
  int64_t waves = 5;
  bool heads = false;
  std::vector<int64_t> branch = {16, 32};
  std::vector<int64_t> time_branch;
  std::vector<int64_t> trunk = {300, 300};
  std::vector<int64_t> encoder_branch;
  std::vector<int64_t> encoder_trunk;
  int64_t embedding = 16;
  int64_t latent = 2;
  int64_t code = 16;  // what the encoder's trunk gives to its two heads
  Norm norm = Norm::before;
  bool branch_norm = true;
  EnergyKind energy = EnergyKind::mlp;
  NiceConfig nice;

  TimeMlpWidths widths() const {
    return {branch, or_else(time_branch, branch), trunk, branch_norm};
  }
  TimeMlpWidths encoder_widths() const {
    return {or_else(encoder_branch, branch), or_else(time_branch, branch),
            or_else(encoder_trunk, trunk), branch_norm};
  }

  void visit(Fields& f) {
    f("layers", layers, {"branches", "waves"},
      "branches for x and t, as in the paper; or waves of x with SiLU, for sharp densities");
    f("waves", waves, between(0, 16), "with waves: sin and cos of 2^k x for k below this");
    f("heads", heads,
      "with waves: E's layers are the same for all times, which have an output each");
    f("branch", branch, at_least(1), "layer widths of the branches for x and for t");
    f("time_branch", time_branch, at_least(1), "of the branch for t; empty: as `branch`");
    f("trunk", trunk, at_least(1), "hidden widths after the branches are joined");
    f("encoder_branch", encoder_branch, at_least(1), "the encoder's for x; empty: as `branch`");
    f("encoder_trunk", encoder_trunk, at_least(1), "the encoder's trunk; empty: as `trunk`");
    f("embedding", embedding, at_least(4), "width of the time embedding");
    f("latent", latent, at_least(1), "dimensions of z");
    f("code", code, at_least(1), "width of the encoder's last layer before its heads");
    f("norm", norm, {"before", "after", "none"},
      "batch norm before or after the PReLU in generator and encoder, or none");
    f("branch_norm", branch_norm, "whether the branch for x has such norms too");
    f("energy", energy, {"mlp", "nice"},
      "a network of the widths above, or a flow with an exact density");
    f.section("nice", nice);
  }

 private:
  static const std::vector<int64_t>& or_else(const std::vector<int64_t>& a,
                                             const std::vector<int64_t>& b) {
    return a.empty() ? b : a;
  }
};

// x [N, in], t [N] -> [N, out]: a branch for x and one for the embedding of t, joined by a trunk.
struct TimeMlpImpl : torch::nn::Module {
  TimeMlpImpl(int64_t in, int64_t out, int64_t steps, const TimeMlpWidths& widths,
              int64_t embedding, Norm norm);
  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& t);
  // For one output and no norms: the output [N] and its gradient in x, differentiable once more.
  ops::ValueAndGradient value_and_gradient(const torch::Tensor& x, const torch::Tensor& t);

 private:
  ops::TimeMlpParts net_;
};
TORCH_MODULE(TimeMlp);

}  // namespace ddaebm
