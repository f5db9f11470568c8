#pragma once

#include <vector>

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>

namespace ddaebm {

// Linear layers with SiLU over x and its waves, sin(2^k x) and cos(2^k x) for k < waves: what
// changes fast in x is then as near as what changes slowly. The first two layers add a learnt
// vector for each time, where there are any. Differentiable at will. x [N, in], t [N] int64, or
// undefined where there are no times -> [N, out].
struct WaveMlpImpl : torch::nn::Module {
  WaveMlpImpl(int64_t in, int64_t out, int64_t times, const std::vector<int64_t>& hidden,
              int64_t waves);
  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& t) const;

 private:
  torch::Tensor frequencies_;                    // [waves]
  std::vector<torch::Tensor> weights_, biases_;  // [C, K], [C]
  std::vector<torch::Tensor> of_times_;          // [times, C]
};
TORCH_MODULE(WaveMlp);

}  // namespace ddaebm
