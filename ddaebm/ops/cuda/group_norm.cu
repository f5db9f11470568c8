// Group norm with scale, shift and SiLU on channels-last images: one block a group, which reads its
// elements two or three times (they stay in the cache) and writes once. The formulas and their
// names are those of ops/image_kernels.cpp.

#include "ddaebm/ops/cuda/launchers.h"
#include "ddaebm/ops/cuda/vectors.cuh"

namespace ddaebm::ops::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;

// Sums over the block of each of the K values, given to all threads.
template <int K, class A>
__device__ void block_sum(A (&values)[K]) {
  __shared__ A partial[kWarps][K];
  __syncthreads();
#pragma unroll
  for (int k = 0; k < K; ++k) {
    A x = values[k];
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) x += __shfl_down_sync(0xffffffffU, x, offset);
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32][k] = x;
  }
  __syncthreads();
#pragma unroll
  for (int k = 0; k < K; ++k) {
    A x = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) x += partial[w][k];
    values[k] = x;
  }
}

// The sums of V channels that each thread found, added up over the threads that share those
// channels, `columns` apart, and written by the first of them.
template <int V, class A>
__device__ void channel_sums(const A (&mine)[V], int columns, bool active, A* out) {
  __shared__ A all[kThreads][V];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < V; ++i) all[threadIdx.x][i] = active ? mine[i] : A(0);
  __syncthreads();
  if (threadIdx.x < columns) {
#pragma unroll
    for (int i = 0; i < V; ++i) {
      A sum = 0;
      for (int t = threadIdx.x; t < kThreads; t += columns) sum += all[t][i];
      out[threadIdx.x * V + i] = sum;
    }
  }
}

template <class A>
__device__ inline A sigmoid(A u) {
  return A(1) / (A(1) + exp(-u));
}
__device__ inline float sigmoid(float u) { return 1.0F / (1.0F + __expf(-u)); }

// One group of one image, as its block sees it. A thread keeps to V channels and walks over pixels.
template <class T, int V>
struct Group {
  using A = typename Wide<T>::type;
  __device__ explicit Group(const GroupNorm& norm)
      : width(static_cast<int>(norm.channels / norm.groups)),
        columns(width / V),
        rows(kThreads / columns),
        image(blockIdx.x / norm.groups),
        first_channel((blockIdx.x % norm.groups) * width),
        column(static_cast<int>(threadIdx.x) % columns),
        row(static_cast<int>(threadIdx.x) / columns),
        active(row < rows),
        pixels(active ? norm.pixels : 0),
        stride(norm.channels),
        offset(image * norm.pixels * stride + first_channel + column * V),
        size(static_cast<A>(norm.pixels) * static_cast<A>(width)) {
    for (int i = 0; i < V; ++i) {
      const int64_t c = first_channel + column * V + i;
      scale[i] = static_cast<const A*>(norm.scale.values)[image * norm.scale.row + c];
      shift[i] = static_cast<const A*>(norm.shift.values)[image * norm.shift.row + c];
    }
  }
  // Calls body(position) for the thread's pixels.
  template <class F>
  __device__ void for_pixels(const F& body) const {
    for (int64_t p = row; p < pixels; p += rows) body(offset + p * stride);
  }
  int width, columns, rows;
  int64_t image, first_channel;
  int column, row;
  bool active;
  int64_t pixels, stride, offset;
  A size;
  A scale[V], shift[V];
};

template <class T, int V>
__global__ void forward_kernel(GroupNorm norm, T* y) {
  using A = typename Wide<T>::type;
  const Group<T, V> group(norm);
  const T* x = static_cast<const T*>(norm.x);
  A sum[1] = {0};
  group.for_pixels([&](int64_t at) {
    A v[V];
    load<T, V>(x + at, v);
    for (int i = 0; i < V; ++i) sum[0] += v[i];
  });
  block_sum(sum);
  const A mean = sum[0] / group.size;
  A squares[1] = {0};
  group.for_pixels([&](int64_t at) {
    A v[V];
    load<T, V>(x + at, v);
    for (int i = 0; i < V; ++i) squares[0] += (v[i] - mean) * (v[i] - mean);
  });
  block_sum(squares);
  const A inverse = A(1) / sqrt(squares[0] / group.size + static_cast<A>(norm.eps));
  group.for_pixels([&](int64_t at) {
    A v[V];
    load<T, V>(x + at, v);
    for (int i = 0; i < V; ++i) {
      const A u = group.scale[i] * ((v[i] - mean) * inverse) + group.shift[i];
      v[i] = norm.silu ? u * sigmoid(u) : u;
    }
    store<T, V>(y + at, v);
  });
  if (threadIdx.x == 0) {
    static_cast<A*>(norm.mean)[blockIdx.x] = mean;
    static_cast<A*>(norm.inverse)[blockIdx.x] = inverse;
  }
}

template <class T, int V>
__global__ void backward_kernel(GroupNorm norm, const T* gy, T* gx,
                                typename Wide<T>::type* gscale, typename Wide<T>::type* gshift) {
  using A = typename Wide<T>::type;
  const Group<T, V> group(norm);
  const T* x = static_cast<const T*>(norm.x);
  const A mean = static_cast<const A*>(norm.mean)[blockIdx.x];
  const A inverse = static_cast<const A*>(norm.inverse)[blockIdx.x];
  // n in xs, gu in gs.
  const auto read = [&](int64_t at, A* xs, A* gs) {
    load<T, V>(x + at, xs);
    load<T, V>(gy + at, gs);
    for (int i = 0; i < V; ++i) {
      xs[i] = (xs[i] - mean) * inverse;
      if (norm.silu) {
        const A u = group.scale[i] * xs[i] + group.shift[i];
        const A s = sigmoid(u);
        gs[i] *= s * (A(1) + u * (A(1) - s));
      }
    }
  };
  A of_scale[V] = {};
  A of_shift[V] = {};
  group.for_pixels([&](int64_t at) {
    A xs[V];
    A gs[V];
    read(at, xs, gs);
    for (int i = 0; i < V; ++i) {
      of_scale[i] += gs[i] * xs[i];
      of_shift[i] += gs[i];
    }
  });
  A sums[2] = {0, 0};  // of k, of k n
  for (int i = 0; i < V; ++i) {
    sums[0] += group.scale[i] * of_shift[i];
    sums[1] += group.scale[i] * of_scale[i];
  }
  block_sum(sums);
  const A mean_k = sums[0] / group.size;
  const A mean_kn = sums[1] / group.size;
  group.for_pixels([&](int64_t at) {
    A xs[V];
    A gs[V];
    read(at, xs, gs);
    for (int i = 0; i < V; ++i) {
      gs[i] = inverse * (group.scale[i] * gs[i] - mean_k - xs[i] * mean_kn);
    }
    store<T, V>(gx + at, gs);
  });
  const int64_t channel = group.image * norm.channels + group.first_channel;
  channel_sums(of_scale, group.columns, group.active, gscale + channel);
  channel_sums(of_shift, group.columns, group.active, gshift + channel);
}

template <class T, int V>
__global__ void backward_twice_kernel(GroupNorm norm, const T* v, const T* gy, T* ggy, T* gx,
                                      typename Wide<T>::type* gscale,
                                      typename Wide<T>::type* gshift) {
  using A = typename Wide<T>::type;
  const Group<T, V> group(norm);
  const T* x = static_cast<const T*>(norm.x);
  const A mean = static_cast<const A*>(norm.mean)[blockIdx.x];
  const A r = static_cast<const A*>(norm.inverse)[blockIdx.x];
  // Of one element: n, silu' and gy silu''.
  struct Element {
    A n, first, second;
  };
  const auto element = [&](A x_value, A g, int i) {
    const A n = (x_value - mean) * r;
    if (!norm.silu) return Element{n, A(1), A(0)};
    const A u = group.scale[i] * n + group.shift[i];
    const A s = sigmoid(u);
    return Element{n, s * (A(1) + u * (A(1) - s)), g * s * (A(1) - s) * (A(2) + u * (A(1) - A(2) * s))};
  };
  A sums[5] = {};  // of v, v n, k, k n, v k
  group.for_pixels([&](int64_t at) {
    A xs[V];
    A gs[V];
    A vs[V];
    load<T, V>(x + at, xs);
    load<T, V>(gy + at, gs);
    load<T, V>(v + at, vs);
    for (int i = 0; i < V; ++i) {
      const Element e = element(xs[i], gs[i], i);
      const A k = group.scale[i] * gs[i] * e.first;
      sums[0] += vs[i];
      sums[1] += vs[i] * e.n;
      sums[2] += k;
      sums[3] += k * e.n;
      sums[4] += vs[i] * k;
    }
  });
  block_sum(sums);
  const A mean_v = sums[0] / group.size;
  const A mean_vn = sums[1] / group.size;
  const A mean_k = sums[2] / group.size;
  const A mean_kn = sums[3] / group.size;
  const A mean_pk = r * (sums[4] / group.size - mean_v * mean_k - mean_vn * mean_kn);

  // dL/dn of an element, given its p and w.
  const auto of_normal = [&](const Element& e, A g, A v_value, A w, int i) {
    const A k = group.scale[i] * g * e.first;
    return group.scale[i] * w * e.second - r * (mean_kn * v_value + mean_vn * k);
  };
  A of_scale[V] = {};
  A of_shift[V] = {};
  A of_n[2] = {0, 0};  // sums of gn, gn n
  group.for_pixels([&](int64_t at) {
    A xs[V];
    A gs[V];
    A vs[V];
    load<T, V>(x + at, xs);
    load<T, V>(gy + at, gs);
    load<T, V>(v + at, vs);
    for (int i = 0; i < V; ++i) {
      const Element e = element(xs[i], gs[i], i);
      const A p = r * (vs[i] - mean_v - e.n * mean_vn);
      const A w = group.scale[i] * p;
      const A q = w * e.second;
      of_scale[i] += p * gs[i] * e.first + q * e.n;
      of_shift[i] += q;
      const A gn = of_normal(e, gs[i], vs[i], w, i);
      of_n[0] += gn;
      of_n[1] += gn * e.n;
      xs[i] = w * e.first;
    }
    store<T, V>(ggy + at, xs);
  });
  block_sum(of_n);
  const A mean_gn = of_n[0] / group.size;
  const A mean_gnn = of_n[1] / group.size;
  group.for_pixels([&](int64_t at) {
    A xs[V];
    A gs[V];
    A vs[V];
    load<T, V>(x + at, xs);
    load<T, V>(gy + at, gs);
    load<T, V>(v + at, vs);
    for (int i = 0; i < V; ++i) {
      const Element e = element(xs[i], gs[i], i);
      const A w = group.scale[i] * r * (vs[i] - mean_v - e.n * mean_vn);
      const A gn = of_normal(e, gs[i], vs[i], w, i);
      xs[i] = r * (gn - mean_gn - e.n * mean_gnn) - r * e.n * mean_pk;
    }
    store<T, V>(gx + at, xs);
  });
  const int64_t channel = group.image * norm.channels + group.first_channel;
  channel_sums(of_scale, group.columns, group.active, gscale + channel);
  channel_sums(of_shift, group.columns, group.active, gshift + channel);
}

// Calls f(T(), integral V) for the image's type and the widest vectors that fit a group's channels.
template <int V>
struct Width {
  static constexpr int value = V;
};
template <class F>
void dispatch(const GroupNorm& norm, const F& f) {
  const int64_t width = norm.channels / norm.groups;
  if (width > kThreads) throw std::runtime_error("group_norm: more than 256 channels a group");
  const auto of_type = [&](auto type) {
    if (width % 4 == 0) {
      f(type, Width<4>());
    } else if (width % 2 == 0) {
      f(type, Width<2>());
    } else {
      f(type, Width<1>());
    }
  };
  if (norm.type == Type::float32) of_type(float());
  if (norm.type == Type::float64) of_type(double());
  if (norm.type == Type::bfloat16) of_type(__nv_bfloat16());
}

dim3 blocks(const GroupNorm& norm) {
  return dim3(static_cast<unsigned>(norm.images * norm.groups));
}

}  // namespace

void group_norm_forward(const GroupNorm& norm, void* y, Stream stream) {
  dispatch(norm, [&](auto type, auto width) {
    using T = decltype(type);
    forward_kernel<T, decltype(width)::value>
        <<<blocks(norm), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(norm,
                                                                          static_cast<T*>(y));
  });
  check_launch("group_norm_forward");
}

void group_norm_backward(const GroupNorm& norm, const void* gy, void* gx, void* gscale,
                         void* gshift, Stream stream) {
  dispatch(norm, [&](auto type, auto width) {
    using T = decltype(type);
    using A = typename Wide<T>::type;
    backward_kernel<T, decltype(width)::value>
        <<<blocks(norm), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
            norm, static_cast<const T*>(gy), static_cast<T*>(gx), static_cast<A*>(gscale),
            static_cast<A*>(gshift));
  });
  check_launch("group_norm_backward");
}

void group_norm_backward_twice(const GroupNorm& norm, const void* v, const void* gy, void* ggy,
                               void* gx, void* gscale, void* gshift, Stream stream) {
  dispatch(norm, [&](auto type, auto width) {
    using T = decltype(type);
    using A = typename Wide<T>::type;
    backward_twice_kernel<T, decltype(width)::value>
        <<<blocks(norm), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
            norm, static_cast<const T*>(v), static_cast<const T*>(gy), static_cast<T*>(ggy),
            static_cast<T*>(gx), static_cast<A*>(gscale), static_cast<A*>(gshift));
  });
  check_launch("group_norm_backward_twice");
}

}  // namespace ddaebm::ops::cuda
