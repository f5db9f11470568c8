// The second derivative of a softmax, a warp for each row.

#include "ddaebm/ops/cuda/launchers.h"
#include "ddaebm/ops/cuda/vectors.cuh"

namespace ddaebm::ops::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;

// Rows are read three times, from the cache after the first.
template <class T, int V>
__global__ void __launch_bounds__(kThreads)
    softmax_twice_kernel(Rows rows, const T* a, const T* h, const T* gs, const T* b, T* of_ga,
                         T* of_s) {
  using A = typename Wide<T>::type;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (row >= rows.count) return;
  const int64_t first = row * rows.size + threadIdx.x % 32 * V;
  const auto each = [&](const auto& body) {
    for (int64_t at = first; at < (row + 1) * rows.size; at += 32 * V) body(at);
  };
  A of_h = 0;
  each([&](int64_t at) {
    const auto as = read<T, V>(a + at);
    const auto hs = read<T, V>(h + at);
#pragma unroll
    for (int i = 0; i < V; ++i) of_h += as[i] * hs[i];
  });
  of_h = over_warp(of_h);
  const auto all = [&](A a_value, A h_value, A g, A b_value) {
    return (h_value - of_h) * g + a_value * b_value;
  };
  A total = 0;
  each([&](int64_t at) {
    const auto as = read<T, V>(a + at);
    const auto hs = read<T, V>(h + at);
    const auto g = read<T, V>(gs + at);
    const auto bs = read<T, V>(b + at);
#pragma unroll
    for (int i = 0; i < V; ++i) total += all(as[i], hs[i], g[i], bs[i]);
  });
  total = over_warp(total);
  each([&](int64_t at) {
    const auto as = read<T, V>(a + at);
    const auto hs = read<T, V>(h + at);
    const auto g = read<T, V>(gs + at);
    const auto bs = read<T, V>(b + at);
    A to_ga[V];
    A to_s[V];
#pragma unroll
    for (int i = 0; i < V; ++i) {
      to_ga[i] = as[i] * (hs[i] - of_h);
      to_s[i] = all(as[i], hs[i], g[i], bs[i]) - as[i] * total;
    }
    store<T, V>(of_ga + at, to_ga);
    store<T, V>(of_s + at, to_s);
  });
}

template <class T, int V>
void launch(const Rows& rows, const void* a, const void* h, const void* gs, const void* b,
            void* of_ga, void* of_s, Stream stream) {
  const auto blocks = static_cast<unsigned>((rows.count + kWarps - 1) / kWarps);
  ops::cuda::launch(softmax_twice_kernel<T, V>, {blocks, kThreads}, stream, rows,
                    static_cast<const T*>(a), static_cast<const T*>(h), static_cast<const T*>(gs),
                    static_cast<const T*>(b), static_cast<T*>(of_ga), static_cast<T*>(of_s));
}

}  // namespace

void softmax_twice(const Rows& rows, const void* a, const void* h, const void* gs, const void* b,
                   void* of_ga, void* of_s, Stream stream) {
  const auto of_type = [&](auto type) {
    using T = decltype(type);
    constexpr int kWide = 16 / static_cast<int>(sizeof(T));
    if (rows.size % kWide == 0) {
      launch<T, kWide>(rows, a, h, gs, b, of_ga, of_s, stream);
    } else {
      launch<T, 1>(rows, a, h, gs, b, of_ga, of_s, stream);
    }
  };
  with_type(rows.type, of_type);
}

}  // namespace ddaebm::ops::cuda
