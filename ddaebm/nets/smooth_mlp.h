#pragma once

#include <vector>

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>

namespace ddaebm {

// Linear layers of the given widths with SiLU after each but the last. Methods that look at the
// curvature of an energy need it: PReLUs make the second derivative in x zero almost everywhere.
// x [N, in] -> [N, widths.back()].
struct SmoothMlpImpl : torch::nn::Module {
  SmoothMlpImpl(int64_t in, const std::vector<int64_t>& widths);
  torch::Tensor forward(const torch::Tensor& x) const;

 private:
  std::vector<torch::Tensor> weights_, biases_;
};
TORCH_MODULE(SmoothMlp);

}  // namespace ddaebm
