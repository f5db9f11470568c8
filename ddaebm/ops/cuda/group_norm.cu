// Group norm with scale, shift, SiLU and dropout on channels-last images: a team of blocks takes some
// whole groups of one image, reads their elements two or three times (from the cache after the first) and
// writes once. The formulas and their names are those of ops/image_kernels.cpp.

#include "ddaebm/ops/cuda/launchers.h"
#include "ddaebm/ops/cuda/spans.cuh"

namespace ddaebm::ops::cuda {
namespace {

// In the accuracy of images of type T.
template <class T, class A>
__device__ inline A sigmoid(A u) {
  if constexpr (sizeof(T) == 2) {
    float t;
#ifdef DDAEBM_CUDA_EMULATION
    t = std::tanh(0.5F * u);
#else
    asm("tanh.approx.f32 %0, %1;" : "=f"(t) : "f"(0.5F * u));
#endif
    return 0.5F * t + 0.5F;
  } else if constexpr (sizeof(T) == 4) {
    return __fdividef(1.0F, 1.0F + __expf(-u));
  } else {
    return A(1) / (A(1) + exp(-u));
  }
}

// Drop: whether there is dropout.
template <class T, int V, bool Drop>
struct Groups : Span<T, V> {
  using Base = Span<T, V>;
  using A = typename Base::A;
  __device__ Groups(const GroupNorm& norm_, Team team)
      : Base(norm_.pixels, norm_.channels, team),
        norm(norm_),
        x(static_cast<const T*>(norm.x) + this->offset),
        group_columns(static_cast<int>(norm.channels / norm.groups) / V),
        first_column(this->column / group_columns * group_columns),
        number(this->image * norm.groups + this->channel / (norm.channels / norm.groups)),
        size(static_cast<A>(norm.pixels) * static_cast<A>(norm.channels / norm.groups)) {
    const auto of_channel = [&](const ChannelValues& values, A* to) {
      for (int i = 0; i < V; ++i) {
        to[i] = values.values == nullptr
                    ? A(0)
                    : static_cast<const A*>(values.values)[this->image * values.row + this->channel + i];
      }
    };
    of_channel(norm.scale, scale);
    of_channel(norm.shift, shift);
    of_channel(norm.add, centre);
    if (Drop) {
      const uint64_t seed = *norm.seed + static_cast<uint64_t>(norm.salt) * 0x9e3779b97f4a7c15U;
      seed_low = static_cast<uint32_t>(seed);
      seed_high = static_cast<uint32_t>(seed >> 32) | 1U;
    }
  }

  // From here on load_x gives the normalised x.
  __device__ void normalise(A mean, A inverse_) {
    inverse = inverse_;
    for (int i = 0; i < V; ++i) centre[i] = (centre[i] - mean) * inverse;
  }
  // By what the forward pass found.
  __device__ void normalise() {
    normalise(static_cast<const A*>(norm.mean)[number], static_cast<const A*>(norm.inverse)[number]);
  }

  // x with what is added to it, or normalised.
  __device__ void load_x(int at, A* to) const {
    load<T, V>(x + at, to);
#pragma unroll
    for (int i = 0; i < V; ++i) to[i] = to[i] * inverse + centre[i];
  }

  // The k-th of the columns' totals, added up over the thread's group.
  __device__ A over_group(const A* totals, int k) const {
    A all = 0;
    for (int j = 0; j < group_columns; ++j) all += totals[k * this->columns + first_column + j];
    return all;
  }
  template <int K>
  __device__ void sum(A (&values)[K], A* scratch) const {
    const A* totals = this->over_rows(values, scratch);
#pragma unroll
    for (int k = 0; k < K; ++k) values[k] = over_group(totals, k);
  }
  // Two sums over groups together with the sums of channels of_scale and of_shift, which are
  // written.
  __device__ void sum(A (&values)[2], const A (&of_scale)[V], const A (&of_shift)[V], A* scratch,
                      A* gchannels) const {
    A all[2 * V + 2];
#pragma unroll
    for (int i = 0; i < V; ++i) {
      all[i] = of_scale[i];
      all[V + i] = of_shift[i];
    }
    all[2 * V] = values[0];
    all[2 * V + 1] = values[1];
    const A* totals = this->over_rows(all, scratch);
    this->write_sums(totals, 0, gchannels);
    this->write_sums(totals, V, gchannels + norm.images * norm.channels);
    values[0] = over_group(totals, 2 * V);
    values[1] = over_group(totals, 2 * V + 1);
  }
  // The third sum of channels, of what was added to x.
  __device__ void write_added(const A (&of_add)[V], A* scratch, A* gchannels) const {
    if (norm.add.values == nullptr) return;
    this->write_sums(this->over_rows(of_add, scratch), 0,
                     gchannels + 2 * norm.images * norm.channels);
  }

  // What dropout multiplies V neighbours by, the same each time that it is asked for: half a random
  // word decides on each.
  __device__ void kept(int at, A (&factors)[V]) const {
    uint32_t word = 0;
#pragma unroll
    for (int i = 0; i < V; ++i) {
      factors[i] = A(1);
      if (!Drop) continue;
      if (i % 2 == 0) {
        word = (static_cast<uint32_t>(this->offset + at + i) ^ seed_low) * 0x85ebca6bU;
        word = (word ^ (word >> 15)) * seed_high;
        word = (word ^ (word >> 13)) * 0xc2b2ae35U;
        word ^= word >> 16;
      }
      const uint32_t half = i % 2 == 0 ? word & 0xffffU : word >> 16;
      factors[i] = half < norm.dropped ? A(0) : static_cast<A>(norm.kept_gain);
    }
  }

  const GroupNorm& norm;
  const T* x;
  int group_columns, first_column;
  int64_t number;
  A size;
  A inverse = 1;
  A scale[V], shift[V], centre[V];
  uint32_t seed_low = 0, seed_high = 0;
};

template <class T, int V, bool Drop>
__global__ void __launch_bounds__(kSpanThreads) forward_kernel(GroupNorm norm, Team team, T* y) {
  using A = typename Wide<T>::type;
  DDAEBM_SHARED(A, scratch, kSpanScratch);
  Groups<T, V, Drop> group(norm, team);
  y += group.offset;
  // Each thread's mean and squares around it, which is exact where the mean is far from zero.
  A near = 0;
  if (group.first < group.end) {
    A v[V];
    group.load_x(group.first * group.channels, v);
    near = v[0];
  }
  A count = 0;
  A difference = 0;
  A squares = 0;
  group.for_pixels([&](int at) {
    A v[V];
    group.load_x(at, v);
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const A d = v[i] - near;
      difference += d;
      squares += d * d;
    }
    count += A(V);
  });
  const A offset = count > A(0) ? difference / count : A(0);
  A total[1] = {count * (near + offset)};
  group.sum(total, scratch);
  const A mean = total[0] / group.size;
  const A apart = near + offset - mean;
  A around[1] = {squares - difference * offset + count * apart * apart};
  group.sum(around, scratch);
  const A inverse = A(1) / sqrt(around[0] / group.size + static_cast<A>(norm.eps));
  group.normalise(mean, inverse);
  group.for_pixels([&](int at) {
    A v[V];
    A kept[V];
    group.load_x(at, v);
    group.kept(at, kept);
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const A u = group.scale[i] * v[i] + group.shift[i];
      v[i] = (norm.silu ? u * sigmoid<T>(u) : u) * kept[i];
    }
    store<T, V>(y + at, v);
  });
  if (group.rank == 0 && group.row == 0 && group.column == group.first_column) {
    static_cast<A*>(norm.mean)[group.number] = mean;
    static_cast<A*>(norm.inverse)[group.number] = inverse;
  }
}

// Of one element: n, and the first and second derivative of silu, with dropout.
template <class A>
struct Element {
  A n, first, second;
};
template <class T, int V, bool Drop, class A>
__device__ inline Element<A> element(const Groups<T, V, Drop>& group, A n, A kept, int i) {
  if (!group.norm.silu) return {n, kept, A(0)};
  const A u = group.scale[i] * n + group.shift[i];
  const A s = sigmoid<T>(u);
  const A y = u * s;
  return {n, kept * (s + y - y * s), kept * (s - s * s) * (A(2) + u - A(2) * y)};
}

template <class T, int V, bool Drop>
__global__ void __launch_bounds__(kSpanThreads)
    backward_kernel(GroupNorm norm, Team team, const T* gy, T* gx,
                    typename Wide<T>::type* gchannels) {
  using A = typename Wide<T>::type;
  DDAEBM_SHARED(A, scratch, kSpanScratch);
  Groups<T, V, Drop> group(norm, team);
  group.normalise();
  const A inverse = group.inverse;
  gy += group.offset;
  gx += group.offset;
  // n in xs, gu in gs.
  const auto read = [&](int at, A* xs, A* gs) {
    A kept[V];
    group.load_x(at, xs);
    load<T, V>(gy + at, gs);
    group.kept(at, kept);
#pragma unroll
    for (int i = 0; i < V; ++i) gs[i] *= element(group, xs[i], kept[i], i).first;
  };
  A of_scale[V] = {};
  A of_shift[V] = {};
  A of_add[V] = {};
  group.for_pixels([&](int at) {
    A xs[V];
    A gs[V];
    read(at, xs, gs);
#pragma unroll
    for (int i = 0; i < V; ++i) {
      of_scale[i] += gs[i] * xs[i];
      of_shift[i] += gs[i];
    }
  });
  A sums[2] = {0, 0};  // of k, k n
  for (int i = 0; i < V; ++i) {
    sums[0] += group.scale[i] * of_shift[i];
    sums[1] += group.scale[i] * of_scale[i];
  }
  if (gchannels != nullptr) {
    group.sum(sums, of_scale, of_shift, scratch, gchannels);
  } else {
    group.sum(sums, scratch);
  }
  const A mean_k = inverse * (sums[0] / group.size);
  const A mean_kn = inverse * (sums[1] / group.size);
  A scale[V];
  for (int i = 0; i < V; ++i) scale[i] = inverse * group.scale[i];
  group.for_pixels([&](int at) {
    A xs[V];
    A gs[V];
    read(at, xs, gs);
#pragma unroll
    for (int i = 0; i < V; ++i) {
      gs[i] = scale[i] * gs[i] - mean_k - xs[i] * mean_kn;
      of_add[i] += gs[i];
    }
    store<T, V>(gx + at, gs);
  });
  if (gchannels != nullptr) group.write_added(of_add, scratch, gchannels);
}

template <class T, int V, bool Drop>
__global__ void __launch_bounds__(kSpanThreads)
    backward_twice_kernel(GroupNorm norm, Team team, const T* v, const T* gy, T* ggy, T* gx,
                          typename Wide<T>::type* gchannels) {
  using A = typename Wide<T>::type;
  DDAEBM_SHARED(A, scratch, kSpanScratch);
  Groups<T, V, Drop> group(norm, team);
  group.normalise();
  const A r = group.inverse;
  v += group.offset;
  gy += group.offset;
  ggy += group.offset;
  gx += group.offset;
  // Calls body(channel, element, gy, v) for the thread's elements; what it returns is
  // stored, where there is a place for it.
  const auto for_elements = [&](T* to, const auto& body) {
    group.for_pixels([&](int at) {
      A xs[V];
      A gs[V];
      A vs[V];
      A kept[V];
      group.load_x(at, xs);
      load<T, V>(gy + at, gs);
      load<T, V>(v + at, vs);
      group.kept(at, kept);
#pragma unroll
      for (int i = 0; i < V; ++i) {
        xs[i] = body(i, element(group, xs[i], kept[i], i), gs[i], vs[i]);
      }
      if (to != nullptr) store<T, V>(to + at, xs);
    });
  };
  A sums[5] = {};  // of v, v n, k, k n, v k
  for_elements(nullptr, [&](int i, const Element<A>& e, A g, A v_value) {
    const A k = group.scale[i] * g * e.first;
    sums[0] += v_value;
    sums[1] += v_value * e.n;
    sums[2] += k;
    sums[3] += k * e.n;
    sums[4] += v_value * k;
    return A(0);
  });
  group.sum(sums, scratch);
  const A mean_v = sums[0] / group.size;
  const A mean_vn = sums[1] / group.size;
  const A mean_k = sums[2] / group.size;
  const A mean_kn = sums[3] / group.size;
  const A mean_pk = r * (sums[4] / group.size - mean_v * mean_k - mean_vn * mean_kn);

  const auto p_of = [&](const Element<A>& e, A v_value) {
    return r * (v_value - mean_v - e.n * mean_vn);
  };
  // dL/dn of an element.
  const auto of_normal = [&](const Element<A>& e, A g, A v_value, int i) {
    const A k = group.scale[i] * g * e.first;
    return group.scale[i] * group.scale[i] * p_of(e, v_value) * g * e.second -
           r * (mean_kn * v_value + mean_vn * k);
  };
  A of_scale[V] = {};
  A of_shift[V] = {};
  A of_add[V] = {};
  A of_n[2] = {0, 0};  // sums of gn, gn n
  for_elements(ggy, [&](int i, const Element<A>& e, A g, A v_value) {
    const A p = p_of(e, v_value);
    const A w = group.scale[i] * p;
    const A q = w * g * e.second;
    of_scale[i] += p * g * e.first + q * e.n;
    of_shift[i] += q;
    const A gn = of_normal(e, g, v_value, i);
    of_n[0] += gn;
    of_n[1] += gn * e.n;
    return w * e.first;
  });
  group.sum(of_n, of_scale, of_shift, scratch, gchannels);
  const A mean_gn = of_n[0] / group.size;
  const A mean_gnn = of_n[1] / group.size;
  for_elements(gx, [&](int i, const Element<A>& e, A g, A v_value) {
    const A gn = of_normal(e, g, v_value, i);
    const A x = r * (gn - mean_gn - e.n * (mean_gnn + mean_pk));
    of_add[i] += x;
    return x;
  });
  group.write_added(of_add, scratch, gchannels);
}

// Calls f(T(), Constant<V>(), Constant<Drop>(), team) for the image's type and the widest vectors
// that fit a group's channels.
template <class F>
void dispatch(const GroupNorm& norm, const F& f) {
  if (norm.images == 0) return;
  const int64_t width = norm.channels / norm.groups;
  const auto of_type = [&](auto type, auto drop) {
    const auto of_vector = [&](auto vector) {
      f(type, vector, drop,
        team_for(norm.pixels, norm.channels, width, decltype(vector)::value, sizeof(type)));
    };
    if (width % 4 == 0) {
      of_vector(Constant<4>());
    } else if (width % 2 == 0) {
      of_vector(Constant<2>());
    } else {
      of_vector(Constant<1>());
    }
  };
  const auto either = [&](auto type) {
    if (norm.seed != nullptr) {
      of_type(type, Constant<1>());
    } else {
      of_type(type, Constant<0>());
    }
  };
  if (norm.type == Type::float32) either(float());
  if (norm.type == Type::float64) either(double());
  if (norm.type == Type::bfloat16) either(__nv_bfloat16());
}

int64_t teams(const GroupNorm& norm, const Team& team) {
  return norm.images * (norm.channels / team.width);
}

}  // namespace

void group_norm_forward(const GroupNorm& norm, void* y, Stream stream) {
  dispatch(norm, [&](auto type, auto vector, auto drop, Team team) {
    using T = decltype(type);
    launch_teams(forward_kernel<T, decltype(vector)::value, decltype(drop)::value>,
                 teams(norm, team), team, stream, norm, team, static_cast<T*>(y));
  });
}

void group_norm_backward(const GroupNorm& norm, const void* gy, void* gx, void* gchannels,
                         Stream stream) {
  dispatch(norm, [&](auto type, auto vector, auto drop, Team team) {
    using T = decltype(type);
    launch_teams(backward_kernel<T, decltype(vector)::value, decltype(drop)::value>,
                 teams(norm, team), team, stream, norm, team, static_cast<const T*>(gy),
                 static_cast<T*>(gx), static_cast<typename Wide<T>::type*>(gchannels));
  });
}

void group_norm_backward_twice(const GroupNorm& norm, const void* v, const void* gy, void* ggy,
                               void* gx, void* gchannels, Stream stream) {
  dispatch(norm, [&](auto type, auto vector, auto drop, Team team) {
    using T = decltype(type);
    launch_teams(backward_twice_kernel<T, decltype(vector)::value, decltype(drop)::value>,
                 teams(norm, team), team, stream, norm, team, static_cast<const T*>(v),
                 static_cast<const T*>(gy), static_cast<T*>(ggy), static_cast<T*>(gx),
                 static_cast<typename Wide<T>::type*>(gchannels));
  });
}

}  // namespace ddaebm::ops::cuda
