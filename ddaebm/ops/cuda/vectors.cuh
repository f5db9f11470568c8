#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include <cuda_bf16.h>

#include "ddaebm/ops/cuda/launch.cuh"
#include "ddaebm/ops/cuda/launchers.h"

// What the kernels share: element types, short vectors of them.
namespace ddaebm::ops::cuda {

// The type that sums and arithmetic use.
template <class T>
struct Wide {
  using type = float;
};
template <>
struct Wide<double> {
  using type = double;
};

__device__ inline float widen(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ inline float widen(float x) { return x; }
__device__ inline double widen(double x) { return x; }
template <class T>
__device__ inline T narrow(typename Wide<T>::type x) {
  return static_cast<T>(x);
}
template <>
__device__ inline __nv_bfloat16 narrow<__nv_bfloat16>(float x) {
  return __float2bfloat16(x);
}

// Calls f(T()) for the type of that name.
template <class F>
void with_type(Type type, const F& f) {
  if (type == Type::float32) f(float());
  if (type == Type::float64) f(double());
  if (type == Type::bfloat16) f(__nv_bfloat16());
}

// The same for float32 and float64 alone.
template <class F>
void with_real_type(Type type, const F& f) {
  if (type == Type::bfloat16) throw std::runtime_error("no bfloat16 here");
  if (type == Type::float32) f(float());
  if (type == Type::float64) f(double());
}

// Over the threads of a warp, given to all of them.
template <class T>
__device__ inline T over_warp(T sum) {
#pragma unroll
  for (int far = 16; far > 0; far /= 2) sum += __shfl_xor_sync(0xffffffffU, sum, far);
  return sum;
}

// A number that a template can take from an argument.
template <int V>
struct Constant {
  static constexpr int value = V;
};

// Kernels with a thread for each place of each image; places are 32-bit numbers, which a GPU
// divides fast.
struct Places {
  int64_t images;
  unsigned count;  // of an image

  Grid grid() const {
    constexpr int64_t kMost = 65535;  // of blocks along y
    return {dim3((count + kThreads - 1) / kThreads, static_cast<unsigned>(std::min(images, kMost)),
                 static_cast<unsigned>((images + kMost - 1) / kMost)),
            kThreads};
  }
  // Of the thread; at >= count where it has none.
  struct Place {
    int64_t image;
    unsigned at;
  };
  __device__ Place mine() const {
    const auto image = static_cast<int64_t>(blockIdx.z) * gridDim.y + blockIdx.y;
    return {image, image < images ? blockIdx.x * kThreads + threadIdx.x : count};
  }
  static constexpr unsigned kThreads = 256;
};

// V neighbouring elements, read and written at once.
template <class T, int V>
struct alignas(sizeof(T) * V) Vector {
  T at[V];
};

// V neighbouring elements as memory has them, in few registers.
template <class T, int V>
struct Words {
  static constexpr int kBytes = static_cast<int>(sizeof(T)) * V;
  unsigned at[(kBytes + 3) / 4];

  __device__ typename Wide<T>::type operator[](int i) const {
    if constexpr (sizeof(T) == 8) {
      return __hiloint2double(static_cast<int>(at[2 * i + 1]), static_cast<int>(at[2 * i]));
    } else if constexpr (sizeof(T) == 4) {
      return __uint_as_float(at[i]);
    } else {
      return __uint_as_float(i % 2 == 0 ? at[i / 2] << 16U : at[i / 2] & 0xffff0000U);
    }
  }
};

// Global memory is read through the read-only path: kernels write other tensors than they read, and
// loads may go ahead of stores.
template <class T, int V, bool Global = true>
__device__ inline Words<T, V> read(const T* from) {
  constexpr int kBytes = Words<T, V>::kBytes;
  using Load = std::conditional_t<
      kBytes % 16 == 0, uint4,
      std::conditional_t<kBytes % 8 == 0, uint2,
                         std::conditional_t<kBytes % 4 == 0, unsigned, unsigned short>>>;
  constexpr int kLoads = kBytes / static_cast<int>(sizeof(Load));
  union {
    Load loads[kLoads];
    Words<T, V> words;
  } both = {};
#pragma unroll
  for (int i = 0; i < kLoads; ++i) {
    const auto* load = reinterpret_cast<const Load*>(from) + i;
    both.loads[i] = Global ? __ldg(load) : *load;
  }
  return both.words;
}

template <class T, int V>
__device__ inline void load(const T* from, typename Wide<T>::type* to) {
  const auto words = read<T, V>(from);
#pragma unroll
  for (int i = 0; i < V; ++i) to[i] = words[i];
}

// V neighbours into shared memory, without waiting for them to arrive.
template <class T, int V>
__device__ inline void copy_async(T* to, const T* from) {
  constexpr int kBytes = Words<T, V>::kBytes;
#ifdef DDAEBM_CUDA_EMULATION
  std::memcpy(to, from, kBytes);
#else
  if constexpr (kBytes >= 4) {
    constexpr int kCopy = kBytes % 16 == 0 ? 16 : kBytes;
    const auto place = static_cast<unsigned>(__cvta_generic_to_shared(to));
#pragma unroll
    for (int i = 0; i < kBytes; i += kCopy) {
      asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(place + i),
                   "l"(reinterpret_cast<const char*>(from) + i), "n"(kCopy)
                   : "memory");
    }
  } else {
    *to = *from;
  }
#endif
}
__device__ inline void wait_for_copies() {
#ifndef DDAEBM_CUDA_EMULATION
  asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

template <class T, int V>
__device__ inline void store(T* to, const typename Wide<T>::type* from) {
  Vector<T, V> v;
#pragma unroll
  for (int i = 0; i < V; ++i) v.at[i] = narrow<T>(from[i]);
  *reinterpret_cast<Vector<T, V>*>(to) = v;
}

}  // namespace ddaebm::ops::cuda
