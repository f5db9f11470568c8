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

}  // namespace ddaebm
