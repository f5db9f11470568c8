#include "ddaebm/nets/networks.h"

#include <torch/csrc/autograd/autograd.h>

#include "ddaebm/error.h"
#include "ddaebm/ops/row_sums.h"

namespace ddaebm {

ops::ValueAndGradient EnergyNet::value_and_gradient(const torch::Tensor& x,
                                                    const torch::Tensor& t) {
  const auto input = x.requires_grad() ? x : x.detach().requires_grad_();
  const auto value = forward(input, t);
  return {value, torch::autograd::grad({value.sum()}, {input}, {}, /*retain_graph=*/true,
                                       /*create_graph=*/true)[0]};
}

torch::Tensor kl_to_prior(const Gaussian& q) { return ops::gaussian_kl(q.mean, q.log_variance); }

ImageShape image_shape(const std::vector<int64_t>& event) {
  if (event.size() != 3 || event[1] != event[2]) {
    fail("data of shape [{}]: expected vectors [D] or square images [C, S, S]; set data.size",
         fmt::join(event, ", "));
  }
  return {event[0], event[1]};
}

std::vector<torch::Tensor> GeneratorNet::guesses(const torch::Tensor& x_next,
                                                 const std::vector<torch::Tensor>& zs,
                                                 const torch::Tensor& t) {
  std::vector<torch::Tensor> made;
  for (const auto& z : zs) made.push_back(forward(x_next, z, t));
  return made;
}

}  // namespace ddaebm
