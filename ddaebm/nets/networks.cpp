#include "ddaebm/nets/networks.h"

#include <torch/csrc/autograd/autograd.h>

namespace ddaebm {

ops::ValueAndGradient EnergyNet::value_and_gradient(const torch::Tensor& x,
                                                    const torch::Tensor& t) {
  const auto input = x.requires_grad() ? x : x.detach().requires_grad_();
  const auto value = forward(input, t);
  return {value, torch::autograd::grad({value.sum()}, {input}, {}, /*retain_graph=*/true,
                                       /*create_graph=*/true)[0]};
}

std::vector<torch::Tensor> GeneratorNet::guesses(const torch::Tensor& x_next,
                                                 const std::vector<torch::Tensor>& zs,
                                                 const torch::Tensor& t) {
  std::vector<torch::Tensor> made;
  for (const auto& z : zs) made.push_back(forward(x_next, z, t));
  return made;
}

}  // namespace ddaebm
