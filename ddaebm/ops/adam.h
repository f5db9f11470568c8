#pragma once

#include <torch/types.h>

namespace ddaebm::ops {

// One Adam step on flat vectors of one type and device, and the running average of the result:
//   m <- b1 m + (1 - b1) g,  v <- b2 v + (1 - b2) g^2,
//   p <- p - rate m / (sqrt(v) correction + eps),  average <- decay average + (1 - decay) p.
// `dials` is [2]: rate, the step size over Adam's first bias correction, and correction, one over
// the root of its second. They are a tensor, so that a captured step can be given new ones.
struct AdamConstants {
  double beta1 = 0.0;
  double beta2 = 0.9;
  double eps = 1e-8;
  double average_decay = 0.0;  // 0: the average is p itself
};
void adam(torch::Tensor& p, const torch::Tensor& g, torch::Tensor& m, torch::Tensor& v,
          torch::Tensor& average, const torch::Tensor& dials, const AdamConstants& constants);

namespace reference {
// The same in plain tensor operations.
void adam(torch::Tensor& p, const torch::Tensor& g, torch::Tensor& m, torch::Tensor& v,
          torch::Tensor& average, const torch::Tensor& dials, const AdamConstants& constants);
}  // namespace reference

}  // namespace ddaebm::ops
