// FIR resampling of channels-last images with the taps (1, 3, 3, 1) / 8 along both axes.

#include "ddaebm/ops/cuda/launchers.h"
#include "ddaebm/ops/cuda/vectors.cuh"

namespace ddaebm::ops::cuda {
namespace {

// One thread makes V channels of one output pixel. Of the four taps along an axis, Up apart meet
// pixels that are not zeros in between.
template <class T, int V, int Up>
__global__ void fir_kernel(Places places, Fir shape, const T* x, T* y) {
  using A = typename Wide<T>::type;
  const auto place = places.mine();
  if (place.at >= places.count) return;
  const auto channels = static_cast<unsigned>(shape.channels);
  const auto columns = channels / V;
  const unsigned pixel = place.at / columns;
  const unsigned c = (place.at - pixel * columns) * V;
  const unsigned line = pixel / static_cast<unsigned>(shape.out_width);
  const int column = static_cast<int>(pixel - line * static_cast<unsigned>(shape.out_width));
  const int left = column * shape.down - shape.pad;
  const int top = static_cast<int>(line) * shape.down - shape.pad;
  const int in_width = static_cast<int>(shape.in_width);
  const int in_height = static_cast<int>(shape.in_height);
  const T* image = x + place.image * in_height * in_width * channels + c;
  const auto tap = [](int k) { return k == 0 || k == 3 ? A(0.125) : A(0.375); };
  A sum[V] = {};
#pragma unroll
  for (int i = 0; i < 4 / Up; ++i) {
    const int ky = i * Up + (Up == 2 ? top & 1 : 0);
    const int iy = (top + ky) / Up;
    if (top + ky < 0 || iy >= in_height) continue;
#pragma unroll
    for (int j = 0; j < 4 / Up; ++j) {
      const int kx = j * Up + (Up == 2 ? left & 1 : 0);
      const int ix = (left + kx) / Up;
      if (left + kx < 0 || ix >= in_width) continue;
      A v[V];
      load<T, V>(image + static_cast<unsigned>(iy * in_width + ix) * channels, v);
      const A weight = tap(ky) * tap(kx);
#pragma unroll
      for (int k = 0; k < V; ++k) sum[k] += weight * v[k];
    }
  }
#pragma unroll
  for (int k = 0; k < V; ++k) sum[k] *= static_cast<A>(shape.gain);
  store<T, V>(y + (place.image * places.count + place.at) * V, sum);
}

template <class T, int V>
void launch(const Fir& shape, const void* x, void* y, cudaStream_t stream) {
  const Places places{shape.images, static_cast<unsigned>(shape.out_height * shape.out_width *
                                                          (shape.channels / V))};
  const auto* from = static_cast<const T*>(x);
  auto* to = static_cast<T*>(y);
  if (shape.up == 2) {
    ops::cuda::launch(fir_kernel<T, V, 2>, places.grid(), stream, places, shape, from, to);
  } else {
    ops::cuda::launch(fir_kernel<T, V, 1>, places.grid(), stream, places, shape, from, to);
  }
}

template <class T>
void launch(const Fir& shape, const void* x, void* y, cudaStream_t stream) {
  if (sizeof(T) == 2 && shape.channels % 8 == 0) {
    launch<T, 8>(shape, x, y, stream);
  } else if (shape.channels % 4 == 0) {
    launch<T, 4>(shape, x, y, stream);
  } else {
    launch<T, 1>(shape, x, y, stream);
  }
}

}  // namespace

void fir(const Fir& shape, const void* x, void* y, Stream stream) {
  const auto on = static_cast<cudaStream_t>(stream);
  with_type(shape.type, [&](auto type) { launch<decltype(type)>(shape, x, y, on); });
}

}  // namespace ddaebm::ops::cuda
