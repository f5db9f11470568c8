#include "ddaebm/ops/adam.h"

#include <cmath>

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>

namespace ddaebm::ops {
namespace {

// One pass over memory instead of ten.
template <class T>
void adam_cpu(T* __restrict p, const T* __restrict g, T* __restrict m, T* __restrict v,
              T* __restrict average, const T* dials, const AdamConstants& c, int64_t n) {
  const T rate = dials[0];
  const T correction = dials[1];
  const T b1 = static_cast<T>(c.beta1);
  const T b2 = static_cast<T>(c.beta2);
  const T one_minus_b1 = static_cast<T>(1.0 - c.beta1);
  const T one_minus_b2 = static_cast<T>(1.0 - c.beta2);
  const T eps = static_cast<T>(c.eps);
  const T keep = static_cast<T>(c.average_decay);
  const T take = static_cast<T>(1.0 - c.average_decay);
  at::parallel_for(0, n, 32768, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      m[i] = b1 * m[i] + one_minus_b1 * g[i];
      v[i] = b2 * v[i] + one_minus_b2 * g[i] * g[i];
      p[i] -= rate * m[i] / (std::sqrt(v[i]) * correction + eps);
      average[i] = keep * average[i] + take * p[i];
    }
  });
}

}  // namespace

void adam(torch::Tensor& p, const torch::Tensor& g, torch::Tensor& m, torch::Tensor& v,
          torch::Tensor& average, const torch::Tensor& dials, const AdamConstants& constants) {
  const torch::NoGradGuard no_grad;
  if (!p.is_cpu()) {
    reference::adam(p, g, m, v, average, dials, constants);
    return;
  }
  const auto contiguous = g.contiguous();
  AT_DISPATCH_FLOATING_TYPES(p.scalar_type(), "adam", [&] {
    adam_cpu<scalar_t>(p.data_ptr<scalar_t>(), contiguous.data_ptr<scalar_t>(),
                       m.data_ptr<scalar_t>(), v.data_ptr<scalar_t>(), average.data_ptr<scalar_t>(),
                       dials.data_ptr<scalar_t>(), constants, p.numel());
  });
}

void reference::adam(torch::Tensor& p, const torch::Tensor& g, torch::Tensor& m, torch::Tensor& v,
                     torch::Tensor& average, const torch::Tensor& dials,
                     const AdamConstants& constants) {
  const torch::NoGradGuard no_grad;
  m.mul_(constants.beta1).add_(g, 1.0 - constants.beta1);
  v.mul_(constants.beta2).addcmul_(g, g, 1.0 - constants.beta2);
  p.sub_(dials[0] * m / (v.sqrt() * dials[1] + constants.eps));
  average.mul_(constants.average_decay).add_(p, 1.0 - constants.average_decay);
}

}  // namespace ddaebm::ops
