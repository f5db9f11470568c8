#include "ddaebm/ops/adam.h"

#include <cmath>

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>

#include "ddaebm/ops/gpu.h"
#include "ddaebm/ops/vectorise.h"

namespace ddaebm::ops {
namespace {

// One pass over memory instead of ten.
template <class T>
DDAEBM_VECTORISE void adam_pass(int64_t n, T rate, T correction, T b1, T b2, T eps, T keep,
                                const T* __restrict g, T* __restrict m, T* __restrict v,
                                T* __restrict p, T* __restrict average) {
  for (int64_t i = 0; i < n; ++i) {
    m[i] = b1 * m[i] + (1 - b1) * g[i];
    v[i] = b2 * v[i] + (1 - b2) * g[i] * g[i];
    p[i] -= rate * m[i] / (std::sqrt(v[i]) * correction + eps);
    average[i] = keep * average[i] + (1 - keep) * p[i];
  }
}

template <class T>
void adam_cpu(T* p, const T* g, T* m, T* v, T* average, const T* dials, const AdamConstants& c,
              int64_t n) {
  at::parallel_for(0, n, 32768, [&](int64_t begin, int64_t end) {
    adam_pass(end - begin, dials[0], dials[1], static_cast<T>(c.beta1), static_cast<T>(c.beta2),
              static_cast<T>(c.eps), static_cast<T>(c.average_decay), g + begin, m + begin,
              v + begin, p + begin, average + begin);
  });
}

}  // namespace

void adam(torch::Tensor& p, const torch::Tensor& g, torch::Tensor& m, torch::Tensor& v,
          torch::Tensor& average, const torch::Tensor& dials, const AdamConstants& constants) {
  const torch::NoGradGuard no_grad;
  if (gpu::takes(p)) {
    gpu::adam(p, g, m, v, average, dials, constants);
    return;
  }
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
