// A chain of dense layers with PReLUs for a handful of rows, such as one for each time: all layers
// in one block of one kernel, since each alone is less work than a launch.

#include "ddaebm/ops/cuda/launchers.h"
#include "ddaebm/ops/cuda/vectors.cuh"

namespace ddaebm::ops::cuda {
namespace {

constexpr int kThreads = 512;

template <class T>
struct View {
  __device__ explicit View(const FewRowsLayer& l)
      : weight(static_cast<const T*>(l.weight)),
        bias(static_cast<const T*>(l.bias)),
        slope(static_cast<const T*>(l.slope)),
        x(static_cast<const T*>(l.x)),
        h(static_cast<T*>(l.h)),
        y(static_cast<T*>(l.y)) {}
  const T *weight, *bias, *slope, *x;
  T *h, *y;
};

template <class T>
__global__ void __launch_bounds__(kThreads) forward_kernel(FewRows chain) {
  for (int n = 0; n < chain.layers; ++n) {
    const FewRowsLayer& l = chain.layer[n];
    const View<T> at(l);
    for (int i = static_cast<int>(threadIdx.x); i < chain.rows * l.out; i += kThreads) {
      const int row = i / l.out;
      const int column = i % l.out;
      T h = at.bias[column];
#pragma unroll 8
      for (int k = 0; k < l.in; ++k) {
        h += at.x[row * l.in + k] * at.weight[column * l.weight_stride + k];
      }
      if (at.slope != nullptr) at.h[i] = h;
      at.y[i] = at.slope == nullptr || h > T(0) ? h : *at.slope * h;
    }
    __syncthreads();
  }
}

// The sum over the block, known to its first thread.
template <class T>
__device__ T block_sum(T mine) {
  DDAEBM_SHARED(T, of_warp, kThreads / 32);
  mine = over_warp(mine);
  __syncthreads();
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = mine;
  __syncthreads();
  T total = 0;
  if (threadIdx.x == 0) {
    for (int warp = 0; warp < kThreads / 32; ++warp) total += of_warp[warp];
  }
  return total;
}

// From the last layer to the first: what comes from above, through the PReLU, to the parameters.
template <class T>
__global__ void __launch_bounds__(kThreads) backward_kernel(FewRows chain, const T* given) {
  for (int n = chain.layers; n-- > 0;) {
    const FewRowsLayer& l = chain.layer[n];
    const View<T> at(l);
    T* gh = static_cast<T*>(l.g);
    T of_slope = 0;
    for (int i = static_cast<int>(threadIdx.x); i < chain.rows * l.out; i += kThreads) {
      T gy = 0;
      if (n + 1 == chain.layers) {
        gy = given[i];
      } else {
        const FewRowsLayer& above = chain.layer[n + 1];
        const T* weight = static_cast<const T*>(above.weight) + i % l.out;
        const T* g = static_cast<const T*>(above.g) + i / l.out * above.out;
#pragma unroll 8
        for (int j = 0; j < above.out; ++j) gy += g[j] * weight[j * above.weight_stride];
      }
      const bool below = at.slope != nullptr && !(at.h[i] > T(0));
      gh[i] = below ? gy * *at.slope : gy;
      if (below) of_slope += gy * at.h[i];
    }
    if (at.slope != nullptr) {
      const T total = block_sum(of_slope);
      if (threadIdx.x == 0) *static_cast<T*>(l.g_slope) = total;
    }
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < l.out * (l.in + 1); i += kThreads) {
      const int out = i / (l.in + 1);
      const int in = i % (l.in + 1);  // the one after the last is the bias
      T sum = 0;
      for (int row = 0; row < chain.rows; ++row) {
        sum += gh[row * l.out + out] * (in == l.in ? T(1) : at.x[row * l.in + in]);
      }
      if (in == l.in) {
        static_cast<T*>(l.g_bias)[out] = sum;
      } else {
        static_cast<T*>(l.g_weight)[out * l.in + in] = sum;
      }
    }
  }
}

}  // namespace

void few_rows_forward(const FewRows& chain, Stream stream) {
  with_real_type(chain.type, [&](auto real) {
    launch(forward_kernel<decltype(real)>, {dim3(1), kThreads}, stream, chain);
  });
}

void few_rows_backward(const FewRows& chain, const void* g, Stream stream) {
  with_real_type(chain.type, [&](auto real) {
    using T = decltype(real);
    launch(backward_kernel<T>, {dim3(1), kThreads}, stream, chain, static_cast<const T*>(g));
  });
}

}  // namespace ddaebm::ops::cuda
