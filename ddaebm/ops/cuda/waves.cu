// Sines and cosines beside the numbers that they are of: a thread a number.

#include "ddaebm/ops/cuda/launchers.h"
#include "ddaebm/ops/cuda/vectors.cuh"

namespace ddaebm::ops::cuda {
namespace {

constexpr int kThreadsOfBlock = 128;

// Where a number's own waves are.
struct Place {
  __device__ explicit Place(const Waves& w)
      : at(static_cast<int64_t>(blockIdx.x) * kThreadsOfBlock + threadIdx.x),
        row(at / w.columns),
        column(at % w.columns),
        whole(row * w.columns * (1 + 2 * w.waves)),
        sine(whole + w.columns + column * w.waves),
        cosine(sine + w.columns * w.waves),
        active(at < w.rows * w.columns) {}
  int64_t at, row, column;
  int64_t whole, sine, cosine;  // in y: its row, and the first of each kind
  bool active;
};

template <class T>
__global__ void __launch_bounds__(kThreadsOfBlock) waves_kernel(Waves w, const T* x, T* y) {
  const Place place(w);
  if (!place.active) return;
  const T* frequencies = static_cast<const T*>(w.frequencies);
  const T value = x[place.at];
  y[place.whole + place.column] = value;
  for (int64_t k = 0; k < w.waves; ++k) {
    y[place.sine + k] = sin(frequencies[k] * value);
    y[place.cosine + k] = cos(frequencies[k] * value);
  }
}

template <class T>
__global__ void __launch_bounds__(kThreadsOfBlock)
    waves_backward_kernel(Waves w, const T* gy, const T* y, T* gx) {
  const Place place(w);
  if (!place.active) return;
  const T* frequencies = static_cast<const T*>(w.frequencies);
  T sum = gy[place.whole + place.column];
  for (int64_t k = 0; k < w.waves; ++k) {
    const int64_t s = place.sine + k;
    const int64_t c = place.cosine + k;
    sum += frequencies[k] * (gy[s] * y[c] - gy[c] * y[s]);
  }
  gx[place.at] = sum;
}

Grid grid_of(const Waves& w) {
  const int64_t blocks = (w.rows * w.columns + kThreadsOfBlock - 1) / kThreadsOfBlock;
  return {dim3(static_cast<unsigned>(blocks)), kThreadsOfBlock};
}

}  // namespace

void waves(const Waves& w, const void* x, void* y, Stream stream) {
  with_real_type(w.type, [&](auto type) {
    using T = decltype(type);
    launch(waves_kernel<T>, grid_of(w), stream, w, static_cast<const T*>(x), static_cast<T*>(y));
  });
}

void waves_backward(const Waves& w, const void* gy, const void* y, void* gx, Stream stream) {
  with_real_type(w.type, [&](auto type) {
    using T = decltype(type);
    launch(waves_backward_kernel<T>, grid_of(w), stream, w, static_cast<const T*>(gy),
           static_cast<const T*>(y), static_cast<T*>(gx));
  });
}

}  // namespace ddaebm::ops::cuda
