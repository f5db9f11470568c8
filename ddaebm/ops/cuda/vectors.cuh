#pragma once

#include <cuda_bf16.h>

#include "ddaebm/ops/cuda/launch.cuh"

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

// A number that a template can take from an argument.
template <int V>
struct Constant {
  static constexpr int value = V;
};

// V neighbouring elements, read and written at once.
template <class T, int V>
struct alignas(sizeof(T) * V) Vector {
  T at[V];
};

// Through the read-only path: kernels write other tensors than they read, and loads may go ahead of
// stores.
template <class Word, class T, int V>
__device__ inline Vector<T, V> read_words(const T* from) {
  constexpr int kWords = sizeof(T) * V / sizeof(Word);
  union {
    Word words[kWords];
    Vector<T, V> vector;
  } both = {};
#pragma unroll
  for (int i = 0; i < kWords; ++i) both.words[i] = __ldg(reinterpret_cast<const Word*>(from) + i);
  return both.vector;
}

template <class T, int V>
__device__ inline void load(const T* from, typename Wide<T>::type* to) {
  constexpr size_t kBytes = sizeof(T) * V;
  Vector<T, V> v;
  if constexpr (kBytes % 16 == 0) {
    v = read_words<uint4, T, V>(from);
  } else if constexpr (kBytes == 8) {
    v = read_words<uint2, T, V>(from);
  } else if constexpr (kBytes == 4) {
    v = read_words<unsigned, T, V>(from);
  } else {
    v = read_words<unsigned short, T, V>(from);
  }
#pragma unroll
  for (int i = 0; i < V; ++i) to[i] = widen(v.at[i]);
}

template <class T, int V>
__device__ inline void store(T* to, const typename Wide<T>::type* from) {
  Vector<T, V> v;
#pragma unroll
  for (int i = 0; i < V; ++i) v.at[i] = narrow<T>(from[i]);
  *reinterpret_cast<Vector<T, V>*>(to) = v;
}

}  // namespace ddaebm::ops::cuda
