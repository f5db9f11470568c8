// Adam and the running average in one pass over memory.

#include "ddaebm/ops/cuda/launchers.h"
#include "ddaebm/ops/cuda/vectors.cuh"

namespace ddaebm::ops::cuda {
namespace {

constexpr int kThreads = 256;

template <class T>
__global__ void adam_kernel(Adam c, T* p, const T* g, T* m, T* v, T* average) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= c.count) return;
  const T b1 = static_cast<T>(c.beta1);
  const T b2 = static_cast<T>(c.beta2);
  const T keep = static_cast<T>(c.average_decay);
  const T* dials = static_cast<const T*>(c.dials);
  const T mi = b1 * m[i] + (1 - b1) * g[i];
  const T vi = b2 * v[i] + (1 - b2) * g[i] * g[i];
  const T pi = p[i] - dials[0] * mi / (sqrt(vi) * dials[1] + static_cast<T>(c.eps));
  m[i] = mi;
  v[i] = vi;
  p[i] = pi;
  average[i] = keep * average[i] + (1 - keep) * pi;
}

template <class T>
void launch(const Adam& c, void* p, const void* g, void* m, void* v, void* average,
            cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>((c.count + kThreads - 1) / kThreads);
  if (blocks == 0) return;
  ops::cuda::launch(adam_kernel<T>, {blocks, kThreads}, stream, c, static_cast<T*>(p),
                    static_cast<const T*>(g), static_cast<T*>(m), static_cast<T*>(v),
                    static_cast<T*>(average));
}

}  // namespace

void adam(const Adam& constants, void* p, const void* g, void* m, void* v, void* average,
          Stream stream) {
  const auto on = static_cast<cudaStream_t>(stream);
  if (constants.type == Type::float32) launch<float>(constants, p, g, m, v, average, on);
  if (constants.type == Type::float64) launch<double>(constants, p, g, m, v, average, on);
}

}  // namespace ddaebm::ops::cuda
