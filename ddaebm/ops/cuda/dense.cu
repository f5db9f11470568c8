// What surrounds the matrix products of networks for vectors, each in one kernel: biases, batch
// norms, PReLUs, with their derivatives and the sums over rows that those need. The formulas and
// names are those of ops/dense_kernels.cpp.

#include "ddaebm/ops/cuda/launchers.h"
#include "ddaebm/ops/cuda/vectors.cuh"

namespace ddaebm::ops::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / 32;
constexpr int kAtOnce = 4;  // rows of the bias table that sums are made for at once

// The columns that a block takes, with all of their rows: 32 bytes of each in float32; fewer where
// it makes the matrix itself, so that more blocks share that work.
constexpr int columns_of_block(bool product) { return product ? 4 : 8; }

template <class T>
__device__ inline T prelu(T h, T slope) {
  return h > T(0) ? h : slope * h;
}
template <class T>
__device__ inline T below_zero(T h) {
  return h < T(0) ? h : T(0);
}
// Without a slope nothing is bent.
template <class T>
__device__ inline T slope_or_one(const T* slope) {
  return slope == nullptr ? T(1) : *slope;
}

// Elements from one column of b to the next in shared memory: columns begin in different banks, at
// multiples of sixteen bytes.
__host__ __device__ inline int pitch(int inner) { return (inner + 31) / 32 * 32 + 4; }

// A thread keeps to one column and walks over rows.
template <class T, bool kProduct>
struct Tile {
  static constexpr int kColumns = columns_of_block(kProduct);
  static constexpr int kRows = kThreads / kColumns;  // of threads

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
#pragma unroll 4
    for (int64_t i = first_row(); i < dense.rows; i += row_step()) {
      body(i, i * dense.columns + column);
    }
  }
  __device__ int64_t first_row() const { return static_cast<int64_t>(blockIdx.y) * kRows + row; }
  __device__ int64_t row_step() const { return static_cast<int64_t>(gridDim.y) * kRows; }

  // Makes the thread's elements of the matrix, a b, where they are not there yet.
  __device__ void make(T* matrix) const {
    if constexpr (kProduct) {
      const Product& p = dense.product;
      DDAEBM_SHARED_LAUNCHED(T, strip);  // the block's columns of b
      const bool along = p.b_inner_stride == 1;
      for (int i = static_cast<int>(threadIdx.x); i < p.inner * kColumns; i += kThreads) {
        const int c = along ? i / p.inner : i % kColumns;
        const int k = along ? i % p.inner : i / kColumns;
        const int64_t at = static_cast<int64_t>(blockIdx.x) * kColumns + c;
        strip[c * pitch(p.inner) + k] =
            at < dense.columns
                ? static_cast<const T*>(p.b)[k * p.b_inner_stride + at * p.b_column_stride]
                : T(0);
      }
      __syncthreads();
      if (!active) return;
      const T* b = strip + threadIdx.x % kColumns * pitch(p.inner);
      const int64_t step = row_step();
      int64_t i = first_row();
      for (; i + step < dense.rows; i += 2 * step) multiply<2>(b, i, matrix);
      if (i < dense.rows) multiply<1>(b, i, matrix);
    }
  }
  // Rows i, i + step, ...: as many at once.
  template <int R>
  __device__ void multiply(const T* b, int64_t i, T* matrix) const {
    constexpr int V = 4;
    const Product& p = dense.product;
    const T* a[R];
    T sums[R] = {};
#pragma unroll
    for (int r = 0; r < R; ++r) {
      a[r] = static_cast<const T*>(p.a) + (i + r * row_step()) * p.a_row_stride;
    }
    int k = 0;
    if (p.aligned) {
#pragma unroll 4
      for (; k + V <= p.inner; k += V) {
        const auto of_b = read<T, V, /*Global=*/false>(b + k);
#pragma unroll
        for (int r = 0; r < R; ++r) {
          const auto of_a = read<T, V>(a[r] + k);
#pragma unroll
          for (int j = 0; j < V; ++j) sums[r] += of_a[j] * of_b[j];
        }
      }
    }
    for (; k < p.inner; ++k) {
#pragma unroll
      for (int r = 0; r < R; ++r) sums[r] += a[r][k] * b[k];
    }
#pragma unroll
    for (int r = 0; r < R; ++r) matrix[(i + r * row_step()) * dense.columns + column] = sums[r];
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

// Without a slope y is null: h is all that is wanted.
template <class T, bool kProduct>
__global__ void bias_prelu_kernel(Dense dense, T* h, const T* slope, AddedRows after, T* y) {
  const Tile<T, kProduct> tile(dense);
  tile.make(h);
  const T* added = static_cast<const T*>(after.table);
  tile.for_rows([&](int64_t i, int64_t at) {
    h[at] += tile.bias(i);
    if (slope == nullptr) return;
    const T more = added == nullptr ? T(0) : added[after.row_of[i] * dense.columns + tile.column];
    y[at] = prelu(h[at], *slope) + more;
  });
}

template <class T>
__device__ inline T sigmoid(T h) {
  return T(1) / (T(1) + exp(-h));
}

// A smooth bend at h.
template <class T>
__device__ inline T bent(T h, Bend bend) {
  if (bend == Bend::silu) return h * sigmoid(h);
  return h > T(20) ? h : log1p(exp(h));
}
template <class T>
__device__ inline T first_derivative(T h, Bend bend) {
  const T s = sigmoid(h);
  return bend == Bend::silu ? s * (T(1) + h * (T(1) - s)) : s;
}
template <class T>
__device__ inline T second_derivative(T h, Bend bend) {
  const T s = sigmoid(h);
  const T of_s = s * (T(1) - s);
  return bend == Bend::silu ? of_s * (T(2) + h * (T(1) - T(2) * s)) : of_s;
}

template <class T, bool kProduct>
__global__ void bias_bend_kernel(Dense dense, T* h, AddedRows before, Bend bend, T* y) {
  const Tile<T, kProduct> tile(dense);
  tile.make(h);
  const T* added = static_cast<const T*>(before.table);
  tile.for_rows([&](int64_t i, int64_t at) {
    const T more = added == nullptr ? T(0) : added[before.row_of[i] * dense.columns + tile.column];
    const T sum = h[at] + tile.bias(i) + more;
    h[at] = sum;
    y[at] = bent(sum, bend);
  });
}

template <class T, bool kProduct>
__global__ void bend_backward_kernel(Dense dense, T* g, const T* h, Bend bend, const T* more,
                                     T* gh) {
  const Tile<T, kProduct> tile(dense);
  tile.make(g);
  tile.for_rows([&](int64_t, int64_t at) {
    gh[at] = g[at] * first_derivative(h[at], bend) + (more == nullptr ? T(0) : more[at]);
  });
}

template <class T, bool kProduct>
__global__ void bend_backward_twice_kernel(Dense dense, T* u, const T* gy, const T* h, Bend bend,
                                           T* of_gy, T* of_h) {
  const Tile<T, kProduct> tile(dense);
  tile.make(u);
  tile.for_rows([&](int64_t, int64_t at) {
    of_gy[at] = u[at] * first_derivative(h[at], bend);
    of_h[at] = u[at] * gy[at] * second_derivative(h[at], bend);
  });
}

template <class T, bool kProduct>
__global__ void prelu_backward_kernel(Dense dense, T* g, const T* h, const T* slope, T* gh) {
  const Tile<T, kProduct> tile(dense);
  tile.make(g);
  tile.for_rows([&](int64_t, int64_t at) { gh[at] = h[at] > T(0) ? g[at] : g[at] * *slope; });
}

// Without a slope h, gh and g_slope are null, and the table's sums are of g.
template <class T, bool kProduct>
__global__ void bias_prelu_backward_kernel(Dense dense, T* g, const T* h, const T* slope, T* gh,
                                           T* g_table, T* g_slope) {
  const Tile<T, kProduct> tile(dense);
  tile.make(g);
  // Each thread reads back what it wrote.
  if (slope == nullptr) {
    tile.write_table_sums(g_table, [&](int64_t, int64_t at) { return g[at]; });
    return;
  }
  const T a = *slope;
  T of_slope = 0;
  tile.for_rows([&](int64_t, int64_t at) {
    gh[at] = h[at] > T(0) ? g[at] : g[at] * a;
    of_slope += g[at] * below_zero(h[at]);
  });
  tile.write_table_sums(g_table, [&](int64_t, int64_t at) { return gh[at]; });
  tile.write_block_sum(of_slope, g_slope);
}

// Without a slope h and g_slope are null.
template <class T, bool kProduct>
__global__ void bias_prelu_tangent_kernel(Dense dense, T* u, const T* weight, const T* h,
                                          const T* slope, const T* dy, T* g_table, T* g_slope) {
  const Tile<T, kProduct> tile(dense);
  tile.make(u);
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

template <class T, bool kProduct>
__global__ void bias_norm_prelu_kernel(Dense dense, BatchNorm norm, T* h, const T* slope, T* y,
                                       T* inverse_out) {
  const Tile<T, kProduct> tile(dense);
  tile.make(h);
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

template <class T, bool kProduct>
__global__ void norm_prelu_backward_kernel(Dense dense, BatchNorm norm, T* g, const T* h,
                                           const T* inverse, const T* slope, T* gh, T* g_scale,
                                           T* g_shift, T* g_slope, T* g_table) {
  const Tile<T, kProduct> tile(dense);
  tile.make(g);
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
  if (dense.table_row_of != nullptr) {
    tile.write_table_sums(g_table, [&](int64_t, int64_t at) { return gh[at]; });
  } else if (tile.active && tile.row == 0) {
    g_table[c] = T(0);  // the norm takes away what all rows share
  }
}

template <class T>
T* as(void* p) {
  return static_cast<T*>(p);
}
template <class T>
const T* as(const void* p) {
  return static_cast<const T*>(p);
}

// Calls f with a type and whether there is a product, if there is anything to do.
template <class T_, bool kProduct_>
struct Kind {
  using T = T_;
  static constexpr bool kProduct = kProduct_;
};
template <class F>
void dispatch(const Dense& dense, const F& f) {
  if (dense.columns == 0) return;
  with_real_type(dense.type, [&](auto type) {
    using T = decltype(type);
    if (dense.product.a == nullptr) {
      f(Kind<T, false>());
    } else {
      f(Kind<T, true>());
    }
  });
}

// How many blocks share the rows, where nothing is summed over them.
unsigned row_blocks(const Dense& dense) {
  const int64_t each = (dense.product.a == nullptr ? 4 : 1) * kThreads /
                       columns_of_block(dense.product.a != nullptr);
  const int64_t wanted = (dense.rows + each - 1) / each;
  return static_cast<unsigned>(wanted < 1 ? 1 : wanted > 1024 ? 1024 : wanted);
}

template <class T, class... Parameters, class... Arguments>
void launch(void (*kernel)(Dense, Parameters...), const Dense& dense, unsigned rows, Stream stream,
            Arguments... arguments) {
  const bool product = dense.product.a != nullptr;
  const dim3 blocks(static_cast<unsigned>(dense_blocks(dense.columns, product)), rows);
  const auto strip =
      product ? static_cast<size_t>(columns_of_block(true) * pitch(dense.product.inner)) : 0;
  ops::cuda::launch(kernel, {blocks, kThreads, 1, strip * sizeof(T)}, stream, dense, arguments...);
}

}  // namespace

int64_t dense_blocks(int64_t columns, bool product) {
  const int each = columns_of_block(product);
  return (columns + each - 1) / each;
}

void bias_prelu(const Dense& dense, void* h, const void* slope, const AddedRows& after, void* y,
                Stream stream) {
  dispatch(dense, [&](auto kind) {
    using K = decltype(kind);
    using T = typename K::T;
    launch<T>(bias_prelu_kernel<T, K::kProduct>, dense, row_blocks(dense), stream, as<T>(h),
              as<T>(slope), after, as<T>(y));
  });
}

void bias_bend(const Dense& dense, void* h, const AddedRows& before, Bend bend, void* y,
               Stream stream) {
  dispatch(dense, [&](auto kind) {
    using K = decltype(kind);
    using T = typename K::T;
    launch<T>(bias_bend_kernel<T, K::kProduct>, dense, row_blocks(dense), stream, as<T>(h), before,
              bend, as<T>(y));
  });
}

void bend_backward(const Dense& dense, void* g, const void* h, Bend bend, const void* more,
                   void* gh, Stream stream) {
  dispatch(dense, [&](auto kind) {
    using K = decltype(kind);
    using T = typename K::T;
    launch<T>(bend_backward_kernel<T, K::kProduct>, dense, row_blocks(dense), stream, as<T>(g),
              as<T>(h), bend, as<T>(more), as<T>(gh));
  });
}

void bend_backward_twice(const Dense& dense, void* u, const void* gy, const void* h, Bend bend,
                         void* of_gy, void* of_h, Stream stream) {
  dispatch(dense, [&](auto kind) {
    using K = decltype(kind);
    using T = typename K::T;
    launch<T>(bend_backward_twice_kernel<T, K::kProduct>, dense, row_blocks(dense), stream,
              as<T>(u), as<T>(gy), as<T>(h), bend, as<T>(of_gy), as<T>(of_h));
  });
}

void prelu_backward(const Dense& dense, void* g, const void* h, const void* slope, void* gh,
                    Stream stream) {
  dispatch(dense, [&](auto kind) {
    using K = decltype(kind);
    using T = typename K::T;
    launch<T>(prelu_backward_kernel<T, K::kProduct>, dense, row_blocks(dense), stream, as<T>(g),
              as<T>(h), as<T>(slope), as<T>(gh));
  });
}

void bias_prelu_backward(const Dense& dense, void* g, const void* h, const void* slope, void* gh,
                         void* g_table, void* g_slope, Stream stream) {
  dispatch(dense, [&](auto kind) {
    using K = decltype(kind);
    using T = typename K::T;
    launch<T>(bias_prelu_backward_kernel<T, K::kProduct>, dense, 1, stream, as<T>(g), as<T>(h),
              as<T>(slope), as<T>(gh), as<T>(g_table), as<T>(g_slope));
  });
}

void bias_prelu_tangent(const Dense& dense, void* u, const void* weight, const void* h,
                        const void* slope, const void* dy, void* g_table, void* g_slope,
                        Stream stream) {
  dispatch(dense, [&](auto kind) {
    using K = decltype(kind);
    using T = typename K::T;
    launch<T>(bias_prelu_tangent_kernel<T, K::kProduct>, dense, 1, stream, as<T>(u), as<T>(weight),
              as<T>(h), as<T>(slope), as<T>(dy), as<T>(g_table), as<T>(g_slope));
  });
}

void bias_norm_prelu(const Dense& dense, const BatchNorm& norm, void* h, const void* slope, void* y,
                     void* inverse, Stream stream) {
  dispatch(dense, [&](auto kind) {
    using K = decltype(kind);
    using T = typename K::T;
    launch<T>(bias_norm_prelu_kernel<T, K::kProduct>, dense, 1, stream, norm, as<T>(h),
              as<T>(slope), as<T>(y), as<T>(inverse));
  });
}

void norm_prelu_backward(const Dense& dense, const BatchNorm& norm, void* g, const void* h,
                         const void* inverse, const void* slope, void* gh, void* g_scale,
                         void* g_shift, void* g_slope, void* g_table, Stream stream) {
  dispatch(dense, [&](auto kind) {
    using K = decltype(kind);
    using T = typename K::T;
    launch<T>(norm_prelu_backward_kernel<T, K::kProduct>, dense, 1, stream, norm, as<T>(g),
              as<T>(h), as<T>(inverse), as<T>(slope), as<T>(gh), as<T>(g_scale), as<T>(g_shift),
              as<T>(g_slope), as<T>(g_table));
  });
}

}  // namespace ddaebm::ops::cuda
