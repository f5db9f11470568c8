// FIR resampling of channels-last images with the taps (1, 3, 3, 1) / 8 along both axes.

#include "ddaebm/ops/cuda/launchers.h"
#include "ddaebm/ops/cuda/vectors.cuh"

namespace ddaebm::ops::cuda {
namespace {

constexpr int kThreads = 256;

// One thread makes V channels of one output pixel.
template <class T, int V, int Up>
__global__ void fir_kernel(Fir shape, const T* x, T* y, int64_t count) {
  using A = typename Wide<T>::type;
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (index >= count) return;
  const int64_t columns = shape.channels / V;
  const int64_t c = (index % columns) * V;
  const int64_t pixel = index / columns;
  const int64_t ox = pixel % shape.out_width;
  const int64_t oy = pixel / shape.out_width % shape.out_height;
  const int64_t n = pixel / shape.out_width / shape.out_height;
  const A taps[4] = {A(0.125), A(0.375), A(0.375), A(0.125)};
  A sum[V] = {};
#pragma unroll
  for (int ky = 0; ky < 4; ++ky) {
    const int64_t py = oy * shape.down + ky - shape.pad;
    if (py < 0 || py % Up != 0 || py / Up >= shape.in_height) continue;
#pragma unroll
    for (int kx = 0; kx < 4; ++kx) {
      const int64_t px = ox * shape.down + kx - shape.pad;
      if (px < 0 || px % Up != 0 || px / Up >= shape.in_width) continue;
      A v[V];
      load<T, V>(x + ((n * shape.in_height + py / Up) * shape.in_width + px / Up) * shape.channels + c,
                 v);
      const A weight = taps[ky] * taps[kx];
      for (int i = 0; i < V; ++i) sum[i] += weight * v[i];
    }
  }
  for (int i = 0; i < V; ++i) sum[i] *= static_cast<A>(shape.gain);
  store<T, V>(y + pixel * shape.channels + c, sum);
}

template <class T, int V>
void launch(const Fir& shape, const void* x, void* y, cudaStream_t stream) {
  const int64_t count =
      shape.images * shape.out_height * shape.out_width * (shape.channels / V);
  const auto blocks = static_cast<unsigned>((count + kThreads - 1) / kThreads);
  if (blocks == 0) return;
  const auto* from = static_cast<const T*>(x);
  auto* to = static_cast<T*>(y);
  if (shape.up == 2) {
    fir_kernel<T, V, 2><<<blocks, kThreads, 0, stream>>>(shape, from, to, count);
  } else {
    fir_kernel<T, V, 1><<<blocks, kThreads, 0, stream>>>(shape, from, to, count);
  }
}

template <class T>
void launch(const Fir& shape, const void* x, void* y, cudaStream_t stream) {
  if (shape.channels % 4 == 0) {
    launch<T, 4>(shape, x, y, stream);
  } else {
    launch<T, 1>(shape, x, y, stream);
  }
}

}  // namespace

void fir(const Fir& shape, const void* x, void* y, Stream stream) {
  const auto on = static_cast<cudaStream_t>(stream);
  if (shape.type == Type::float32) launch<float>(shape, x, y, on);
  if (shape.type == Type::float64) launch<double>(shape, x, y, on);
  if (shape.type == Type::bfloat16) launch<__nv_bfloat16>(shape, x, y, on);
  check_launch("fir");
}

}  // namespace ddaebm::ops::cuda
