// What surrounds the matrix products of networks for vectors, each in one kernel: biases, batch
// norms, PReLUs, with their derivatives and the sums over rows that those need. The formulas and
// names are those of ops/dense_kernels.cpp.

#include "ddaebm/ops/cuda/launchers.h"
#include "ddaebm/ops/cuda/vectors.cuh"

namespace ddaebm::ops::cuda {
namespace {

constexpr int kColumns = 8;  // that a block takes, with all of their rows: 32 bytes of each
constexpr int kRows = 64;    // of threads
constexpr int kWarps = kRows * kColumns / 32;
constexpr int kAtOnce = 4;  // rows of the bias table that sums are made for at once

template <class T>
__device__ inline T prelu(T h, T slope) {
  return h > T(0) ? h : slope * h;
}
template <class T>
__device__ inline T below_zero(T h) {
  return h < T(0) ? h : T(0);
}

// A thread keeps to one column and walks over rows.
template <class T>
struct Tile {
  __device__ explicit Tile(const Dense& dense_)
      : dense(dense_),
        row(static_cast<int>(threadIdx.x) / kColumns),
        column(static_cast<int64_t>(blockIdx.x) * kColumns + threadIdx.x % kColumns),
        active(column < dense.columns) {}

  // Calls body(row, position) for the thread's elements. Where there is nothing to sum, blocks
  // share the rows.
  template <class F>
  __device__ void for_rows(const F& body) const {
    if (!active) return;
    const int64_t step = static_cast<int64_t>(gridDim.y) * kRows;
#pragma unroll 4
    for (int64_t i = static_cast<int64_t>(blockIdx.y) * kRows + row; i < dense.rows; i += step) {
      body(i, i * dense.columns + column);
    }
  }
  __device__ int64_t table_row(int64_t i) const {
    return dense.table_row_of == nullptr ? 0 : dense.table_row_of[i];
  }
  __device__ T bias(int64_t i) const {
    if (dense.table == nullptr) return T(0);
    return static_cast<const T*>(dense.table)[table_row(i) * dense.columns + column];
  }
  // Over the column's threads, given to all of them.
  template <int K>
  __device__ void sum(T (&mine)[K]) const {
    DDAEBM_SHARED(T, all, K * kWarps * kColumns);
    __syncthreads();
    const int in_column = static_cast<int>(threadIdx.x) % kColumns;
#pragma unroll
    for (int k = 0; k < K; ++k) {
      T of_warp = mine[k];
#pragma unroll
      for (int far = kColumns; far < 32; far *= 2) {
        of_warp += __shfl_xor_sync(0xffffffffU, of_warp, far);
      }
      if (threadIdx.x % 32 < kColumns) {
        all[(static_cast<int>(threadIdx.x) / 32 * K + k) * kColumns + in_column] = of_warp;
      }
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < K; ++k) {
      mine[k] = 0;
#pragma unroll
      for (int warp = 0; warp < kWarps; ++warp) {
        mine[k] += all[(warp * K + k) * kColumns + in_column];
      }
    }
  }
  __device__ T sum(T mine) const {
    T one[1] = {mine};
    sum(one);
    return one[0];
  }
  // Over the block's columns too, written by one thread.
  __device__ void write_block_sum(T mine, T* out) const {
    T total = sum(active ? mine : T(0));
#pragma unroll
    for (int far = kColumns / 2; far > 0; far /= 2) {
      total += __shfl_xor_sync(0xffffffffU, total, far);
    }
    if (threadIdx.x == 0) out[blockIdx.x] = total;
  }
  // Sums of value(row, position), over the input rows of each row of the bias table.
  template <class F>
  __device__ void write_table_sums(T* out, const F& value) const {
    for (int64_t first = 0; first < dense.table_rows; first += kAtOnce) {
      T sums[kAtOnce] = {};
      for_rows([&](int64_t i, int64_t at) {
        const int64_t which = table_row(i) - first;
        const T v = value(i, at);
#pragma unroll
        for (int k = 0; k < kAtOnce; ++k) sums[k] += which == k ? v : T(0);
      });
      sum(sums);
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        if (active && row == k && first + k < dense.table_rows) {
          out[(first + k) * dense.columns + column] = sums[k];
        }
      }
    }
  }

  const Dense& dense;
  int row;
  int64_t column;
  bool active;
};

template <class T>
__global__ void bias_prelu_kernel(Dense dense, T* h, const T* slope, AddedRows after, T* y) {
  const Tile<T> tile(dense);
  const T* added = static_cast<const T*>(after.table);
  tile.for_rows([&](int64_t i, int64_t at) {
    h[at] += tile.bias(i);
    const T more = added == nullptr ? T(0) : added[after.row_of[i] * dense.columns + tile.column];
    y[at] = prelu(h[at], *slope) + more;
  });
}

template <class T>
__global__ void prelu_backward_kernel(Dense dense, const T* g, const T* h, const T* slope, T* gh) {
  const Tile<T> tile(dense);
  tile.for_rows([&](int64_t, int64_t at) { gh[at] = h[at] > T(0) ? g[at] : g[at] * *slope; });
}

template <class T>
__global__ void bias_prelu_backward_kernel(Dense dense, const T* g, const T* h, const T* slope,
                                           T* gh, T* g_table, T* g_slope) {
  const Tile<T> tile(dense);
  const T a = *slope;
  T of_slope = 0;
  tile.for_rows([&](int64_t, int64_t at) {
    gh[at] = h[at] > T(0) ? g[at] : g[at] * a;
    of_slope += g[at] * below_zero(h[at]);
  });
  // Each thread reads back what it wrote.
  tile.write_table_sums(g_table, [&](int64_t, int64_t at) { return gh[at]; });
  tile.write_block_sum(of_slope, g_slope);
}

// Without a slope nothing is bent; then g_slope is null.
template <class T>
__device__ inline T slope_or_one(const T* slope) {
  return slope == nullptr ? T(1) : *slope;
}

// Without a slope h is null too.
template <class T>
__global__ void bias_prelu_tangent_kernel(Dense dense, T* u, const T* weight, const T* h,
                                          const T* slope, const T* dy, T* g_table, T* g_slope) {
  const Tile<T> tile(dense);
  const bool bent = slope != nullptr;
  const T a = slope_or_one(slope);
  T of_slope = 0;
  tile.for_rows([&](int64_t i, int64_t at) {
    const T v = u[at] + weight[i] * tile.bias(i);
    const bool above = !bent || h[at] > T(0);
    of_slope += above ? T(0) : dy[at] * v;
    u[at] = above ? v : v * a;
  });
  tile.write_table_sums(g_table, [&](int64_t i, int64_t at) {
    return weight[i] * dy[at] * (!bent || h[at] > T(0) ? T(1) : a);
  });
  if (bent) tile.write_block_sum(of_slope, g_slope);
}

template <class T>
__global__ void sum_rows_kernel(Dense dense, const T* g, T* sums) {
  const Tile<T> tile(dense);
  tile.write_table_sums(sums, [&](int64_t, int64_t at) { return g[at]; });
}

template <class T>
__global__ void bias_norm_prelu_kernel(Dense dense, BatchNorm norm, T* h, const T* slope, T* y,
                                       T* inverse_out) {
  const Tile<T> tile(dense);
  const T count = static_cast<T>(dense.rows);
  T mine = 0;
  tile.for_rows([&](int64_t i, int64_t at) {
    h[at] += tile.bias(i);
    mine += h[at];
  });
  const T mean = tile.sum(mine) / count;
  mine = 0;
  tile.for_rows([&](int64_t, int64_t at) {
    h[at] -= mean;
    mine += h[at] * h[at];
  });
  const T variance = tile.sum(mine) / count;
  if (!tile.active) return;
  const T inverse = T(1) / sqrt(variance + static_cast<T>(norm.eps));
  const int64_t c = tile.column;
  const T scale = static_cast<const T*>(norm.scale)[c];
  const T shift = static_cast<const T*>(norm.shift)[c];
  const T a = slope_or_one(slope);
  tile.for_rows([&](int64_t, int64_t at) {
    h[at] *= inverse;
    y[at] = prelu(h[at] * scale + shift, a);
  });
  if (tile.row == 0) {
    const T m = static_cast<T>(norm.momentum);
    T& mean_average = static_cast<T*>(norm.running_mean)[c];
    T& variance_average = static_cast<T*>(norm.running_variance)[c];
    const T unbiased = count / max(count - T(1), T(1));
    mean_average = (T(1) - m) * mean_average + m * mean;
    variance_average = (T(1) - m) * variance_average + m * variance * unbiased;
    inverse_out[c] = inverse;
  }
}

template <class T>
__global__ void norm_prelu_backward_kernel(Dense dense, BatchNorm norm, const T* g, const T* h,
                                           const T* inverse, const T* slope, T* gh, T* g_scale,
                                           T* g_shift, T* g_slope) {
  const Tile<T> tile(dense);
  const T a = slope_or_one(slope);
  const int64_t c = tile.active ? tile.column : 0;
  const T scale = static_cast<const T*>(norm.scale)[c];
  const T shift = static_cast<const T*>(norm.shift)[c];
  T of_slope = 0;
  T sums[2] = {};  // of the scale, of the shift
  const auto of_u = [&](int64_t at) { return h[at] * scale + shift > T(0) ? g[at] : g[at] * a; };
  tile.for_rows([&](int64_t, int64_t at) {
    const T gu = of_u(at);
    of_slope += g[at] * below_zero(h[at] * scale + shift);
    sums[0] += gu * h[at];
    sums[1] += gu;
  });
  tile.sum(sums);
  const T share = T(1) / static_cast<T>(dense.rows);
  const T factor = scale * inverse[c];
  tile.for_rows([&](int64_t, int64_t at) {
    gh[at] = (of_u(at) - share * (sums[1] + h[at] * sums[0])) * factor;
  });
  if (tile.active && tile.row == 0) {
    g_scale[c] = sums[0];
    g_shift[c] = sums[1];
  }
  if (slope != nullptr) tile.write_block_sum(of_slope, g_slope);
}

template <class T>
T* as(void* p) {
  return static_cast<T*>(p);
}
template <class T>
const T* as(const void* p) {
  return static_cast<const T*>(p);
}

// Calls f(T()) for the type of the layer, if it has anything.
template <class F>
void dispatch(const Dense& dense, const F& f) {
  if (dense.columns == 0) return;
  with_real_type(dense.type, f);
}

// How many blocks share the rows, where nothing is summed over them.
unsigned row_blocks(const Dense& dense) {
  const int64_t wanted = (dense.rows + 4 * kRows - 1) / (4 * kRows);
  return static_cast<unsigned>(wanted < 1 ? 1 : wanted > 1024 ? 1024 : wanted);
}

template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Dense, Parameters...), const Dense& dense, unsigned rows, Stream stream,
            Arguments... arguments) {
  const dim3 blocks(static_cast<unsigned>(dense_blocks(dense.columns)), rows);
  ops::cuda::launch(kernel, {blocks, kColumns * kRows}, stream, dense, arguments...);
}

}  // namespace

int64_t dense_blocks(int64_t columns) { return (columns + kColumns - 1) / kColumns; }

void bias_prelu(const Dense& dense, void* h, const void* slope, const AddedRows& after, void* y,
                Stream stream) {
  dispatch(dense, [&](auto type) {
    using T = decltype(type);
    launch(bias_prelu_kernel<T>, dense, row_blocks(dense), stream, as<T>(h), as<T>(slope), after,
           as<T>(y));
  });
}

void prelu_backward(const Dense& dense, const void* g, const void* h, const void* slope, void* gh,
                    Stream stream) {
  dispatch(dense, [&](auto type) {
    using T = decltype(type);
    launch(prelu_backward_kernel<T>, dense, row_blocks(dense), stream, as<T>(g), as<T>(h),
           as<T>(slope), as<T>(gh));
  });
}

void bias_prelu_backward(const Dense& dense, const void* g, const void* h, const void* slope,
                         void* gh, void* g_table, void* g_slope, Stream stream) {
  dispatch(dense, [&](auto type) {
    using T = decltype(type);
    launch(bias_prelu_backward_kernel<T>, dense, 1, stream, as<T>(g), as<T>(h), as<T>(slope),
           as<T>(gh), as<T>(g_table), as<T>(g_slope));
  });
}

void bias_prelu_tangent(const Dense& dense, void* u, const void* weight, const void* h,
                        const void* slope, const void* dy, void* g_table, void* g_slope,
                        Stream stream) {
  dispatch(dense, [&](auto type) {
    using T = decltype(type);
    launch(bias_prelu_tangent_kernel<T>, dense, 1, stream, as<T>(u), as<T>(weight), as<T>(h),
           as<T>(slope), as<T>(dy), as<T>(g_table), as<T>(g_slope));
  });
}

void sum_rows(const Dense& dense, const void* g, void* sums, Stream stream) {
  dispatch(dense, [&](auto type) {
    using T = decltype(type);
    launch(sum_rows_kernel<T>, dense, 1, stream, as<T>(g), as<T>(sums));
  });
}

void bias_norm_prelu(const Dense& dense, const BatchNorm& norm, void* h, const void* slope, void* y,
                     void* inverse, Stream stream) {
  dispatch(dense, [&](auto type) {
    using T = decltype(type);
    launch(bias_norm_prelu_kernel<T>, dense, 1, stream, norm, as<T>(h), as<T>(slope), as<T>(y),
           as<T>(inverse));
  });
}

void norm_prelu_backward(const Dense& dense, const BatchNorm& norm, const void* g, const void* h,
                         const void* inverse, const void* slope, void* gh, void* g_scale,
                         void* g_shift, void* g_slope, Stream stream) {
  dispatch(dense, [&](auto type) {
    using T = decltype(type);
    launch(norm_prelu_backward_kernel<T>, dense, 1, stream, norm, as<T>(g), as<T>(h),
           as<T>(inverse), as<T>(slope), as<T>(gh), as<T>(g_scale), as<T>(g_shift), as<T>(g_slope));
  });
}

}  // namespace ddaebm::ops::cuda
