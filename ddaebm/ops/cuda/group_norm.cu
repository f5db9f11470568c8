// Group norm with scale, shift, SiLU and dropout on channels-last images: a team of blocks takes
// some whole groups of one image, copies their elements into shared memory, makes their sums, and
// writes. The formulas and their names are those of ops/image_kernels.cpp.

#include "ddaebm/ops/cuda/launchers.h"
#include "ddaebm/ops/cuda/spans.cuh"

namespace ddaebm::ops::cuda {
namespace {

// That the kernels make for each thread.
constexpr int kForwardSums = 2;
template <int V>
constexpr int kBackwardSums = 3 * V + 2;
template <int V>
constexpr int kTwiceSums = 11 * V;

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

// Silu, Drop: whether they are there.
template <class T, int V, bool Silu, bool Drop>
struct Groups : Span<T, V> {
  using Base = Span<T, V>;
  using A = typename Base::A;
  __device__ Groups(const GroupNorm& norm_, const Team& team)
      : Base(team),
        norm(norm_),
        x(static_cast<const T*>(norm.x) + this->offset),
        one_over_size(static_cast<A>(team.unit_share)) {
    const int in_span = min(this->column, team.columns - 1) / team.unit_columns;
    first_column = in_span * team.unit_columns;
    number = (this->image * static_cast<int>(team.spans) + this->span) *
                 (team.columns / team.unit_columns) +
             in_span;
    const A* scales = of_image(norm.scale) + this->channel;
    const A* shifts = of_image(norm.shift) + this->channel;
    const A* adds = of_image(norm.add) + this->channel;
#pragma unroll
    for (int i = 0; i < V; ++i) {
      scale[i] = scales[i];
      shift[i] = shifts[i];
      centre[i] = norm.add.values == nullptr ? A(0) : adds[i];
    }
    if (Drop) {
      const uint64_t seed = *norm.seed + static_cast<uint64_t>(norm.salt) * 0x9e3779b97f4a7c15U;
      seed_low = static_cast<uint32_t>(seed);
      seed_high = static_cast<uint32_t>(seed >> 32) | 1U;
    }
  }

  __device__ const A* of_image(const ChannelValues& values) const {
    return static_cast<const A*>(values.values) + this->image * values.row;
  }
  __device__ int first_channel() const { return this->span * this->team.width + first_column * V; }

  // x with what is added to it, of the group's first element.
  __device__ A first_element() const {
    const A element = widen(x[first_channel() - this->channel]);
    return norm.add.values == nullptr ? element : element + of_image(norm.add)[first_channel()];
  }

  // From here on `normal` gives the normalised x: by what the forward pass found.
  __device__ void normalise() {
    const A mean = static_cast<const A*>(norm.mean)[number];
    inverse = static_cast<const A*>(norm.inverse)[number];
#pragma unroll
    for (int i = 0; i < V; ++i) centre[i] = (centre[i] - mean) * inverse;
  }
  __device__ A normal(A value, int i) const { return value * inverse + centre[i]; }

  // The k-th of the columns' totals, added up over the thread's group.
  __device__ A over_group(const A* totals, int k) const {
    const A* from = totals + k * this->team.columns + first_column;
    A all = 0;
#pragma unroll 1
    for (int j = 0; j < this->team.unit_columns; ++j) all += from[j];
    return all;
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
  int first_column, number;  // of the group: its first column, its place in the means
  A one_over_size;           // of a group
  A inverse = 1;
  A scale[V], shift[V], centre[V];
  uint32_t seed_low = 0, seed_high = 0;
};

template <class T, int V, bool Silu, bool Drop>
__global__ void __launch_bounds__(kSpanThreads, 3) forward_kernel(Team team, GroupNorm norm, T* y) {
  using A = typename Wide<T>::type;
  DDAEBM_SHARED_LAUNCHED(A, scratch);
  const Groups<T, V, Silu, Drop> group(norm, team);
  const Pixels<T, V, 1> pixels(group, places<T>(scratch, team, kForwardSums), group.x);
  y += group.offset;
  // Around one of the elements, which is exact where the mean is far from zero.
  const A near = group.first_element();
  A sums[kForwardSums] = {};
  pixels.each([&](int, const auto& values) {
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const A d = values[0][i] + (group.centre[i] - near);
      sums[0] += d;
      sums[1] += d * d;
    }
  });
  const A* totals = group.over_rows(sums, scratch);
  const A apart = group.over_group(totals, 0) * group.one_over_size;
  const A variance = max(A(0), group.over_group(totals, 1) * group.one_over_size - apart * apart);
  const A mean = near + apart;
  const A inverse = A(1) / sqrt(variance + static_cast<A>(norm.eps));
  A slope[V];
  A intercept[V];
#pragma unroll
  for (int i = 0; i < V; ++i) {
    slope[i] = inverse * group.scale[i];
    intercept[i] = (group.centre[i] - mean) * slope[i] + group.shift[i];
  }
  pixels.each([&](int at, const auto& values) {
    A v[V];
    A kept[V];
    group.kept(at, kept);
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const A u = values[0][i] * slope[i] + intercept[i];
      v[i] = (Silu ? u * sigmoid<T>(u) : u) * kept[i];
    }
    store<T, V>(y + at, v);
  });
  if (group.writes() && group.column == group.first_column) {
    static_cast<A*>(norm.mean)[group.number] = mean;
    static_cast<A*>(norm.inverse)[group.number] = inverse;
  }
  group.finish();
}

// Of one element: n, and the first and second derivative of silu, with dropout.
template <class A>
struct Element {
  A n, first, second;
};
template <class T, int V, bool Silu, bool Drop, class A>
__device__ inline Element<A> element(const Groups<T, V, Silu, Drop>& group, A n, A kept, int i) {
  if (!Silu) return {n, kept, A(0)};
  const A u = group.scale[i] * n + group.shift[i];
  const A s = sigmoid<T>(u);
  const A rest = u - u * s;
  return {n, kept * (s + s * rest), kept * (s - s * s) * (A(2) - u + A(2) * rest)};
}

template <class T, int V, bool Silu, bool Drop>
__global__ void __launch_bounds__(kSpanThreads, 4)
    backward_kernel(Team team, GroupNorm norm, const T* gy, const T* more, T* gx,
                    typename Wide<T>::type* gchannels) {
  using A = typename Wide<T>::type;
  DDAEBM_SHARED_LAUNCHED(A, scratch);
  Groups<T, V, Silu, Drop> group(norm, team);
  const Pixels<T, V, 2> pixels(group, places<T>(scratch, team, kBackwardSums<V>), group.x,
                               gy + group.offset);
  group.normalise();
  gx += group.offset;
  // n, and gu
  const auto work_out = [&](int at, const auto& values, A* ns, A* gs) {
    A kept[V];
    group.kept(at, kept);
#pragma unroll
    for (int i = 0; i < V; ++i) {
      ns[i] = group.normal(values[0][i], i);
      gs[i] = values[1][i] * element(group, ns[i], kept[i], i).first;
    }
  };
  // Of each channel gu n, gu and n, then of all of the thread's k and k n.
  A sums[kBackwardSums<V>] = {};
  pixels.each([&](int at, const auto& values) {
    A ns[V];
    A gs[V];
    work_out(at, values, ns, gs);
#pragma unroll
    for (int i = 0; i < V; ++i) {
      sums[i] += gs[i] * ns[i];
      sums[V + i] += gs[i];
      sums[2 * V + i] += ns[i];
    }
  });
  A of_group[2] = {};
#pragma unroll
  for (int i = 0; i < V; ++i) {
    of_group[0] += group.scale[i] * sums[V + i];
    of_group[1] += group.scale[i] * sums[i];
  }
  sums[3 * V] = of_group[0];
  sums[3 * V + 1] = of_group[1];
  const bool all = gchannels != nullptr;
  const A* totals = all ? group.over_rows(sums, scratch) : group.over_rows(of_group, scratch);
  const A mean_k =
      group.inverse * (group.over_group(totals, all ? 3 * V : 0) * group.one_over_size);
  const A mean_kn =
      group.inverse * (group.over_group(totals, all ? 3 * V + 1 : 1) * group.one_over_size);
  A scale[V];
#pragma unroll
  for (int i = 0; i < V; ++i) scale[i] = group.inverse * group.scale[i];
  pixels.each([&](int at, const auto& values) {
    A ns[V];
    A gs[V];
    work_out(at, values, ns, gs);
#pragma unroll
    for (int i = 0; i < V; ++i) gs[i] = scale[i] * gs[i] - mean_k - ns[i] * mean_kn;
    if (more != nullptr) {
      const auto others = read<T, V>(more + group.offset + at);
#pragma unroll
      for (int i = 0; i < V; ++i) gs[i] += others[i];
    }
    store<T, V>(gx + at, gs);
  });
  if (all && group.writes()) {
    const int64_t count = norm.images * norm.channels;
    A* to = gchannels + static_cast<int64_t>(group.image) * norm.channels + group.channel;
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const auto total = [&](int k) {
        return totals[(k * V + i) * group.team.columns + group.column];
      };
      to[i] = total(0);
      to[count + i] = total(1);
      if (norm.add.values != nullptr) {
        to[2 * count + i] =
            scale[i] * total(1) - static_cast<A>(team.pixels) * mean_k - total(2) * mean_kn;
      }
    }
  }
  group.finish();
}

// With k = g silu' and q = g silu'' (scale left out), all that the second pass needs is linear in
// the channels' sums of these; so one reduction is enough.
template <class T, int V, bool Silu, bool Drop>
__global__ void __launch_bounds__(kSpanThreads, 2)
    backward_twice_kernel(Team team, GroupNorm norm, const T* v, const T* gy, T* ggy, T* gx,
                          typename Wide<T>::type* gchannels) {
  using A = typename Wide<T>::type;
  DDAEBM_SHARED_LAUNCHED(A, scratch);
  Groups<T, V, Silu, Drop> group(norm, team);
  const Pixels<T, V, 3> pixels(group, places<T>(scratch, team, kTwiceSums<V>), group.x,
                               gy + group.offset, v + group.offset);
  group.normalise();
  const A r = group.inverse;
  ggy += group.offset;
  gx += group.offset;

  enum { kOfV, kOfVn, kOfK, kOfKn, kOfVk, kOfQ, kOfQn, kOfQnn, kOfQv, kOfQvn, kOfN, kSums };
  static_assert(kSums * V == kTwiceSums<V>);
  A sums[kTwiceSums<V>] = {};
  // Calls body(channel, element, gy, v) for each of V neighbours.
  const auto for_elements = [&](int at, const auto& values, const auto& body) {
    A kept[V];
    group.kept(at, kept);
#pragma unroll
    for (int i = 0; i < V; ++i) {
      body(i, element(group, group.normal(values[0][i], i), kept[i], i), values[1][i],
           values[2][i]);
    }
  };
  pixels.each([&](int at, const auto& values) {
    for_elements(at, values, [&](int i, const Element<A>& e, A g, A v_value) {
      const A k = g * e.first;
      const A q = g * e.second;
      sums[kOfV * V + i] += v_value;
      sums[kOfVn * V + i] += v_value * e.n;
      sums[kOfK * V + i] += k;
      sums[kOfKn * V + i] += k * e.n;
      sums[kOfVk * V + i] += v_value * k;
      sums[kOfQ * V + i] += q;
      sums[kOfQn * V + i] += q * e.n;
      sums[kOfQnn * V + i] += q * e.n * e.n;
      sums[kOfQv * V + i] += q * v_value;
      sums[kOfQvn * V + i] += q * v_value * e.n;
      sums[kOfN * V + i] += e.n;
    });
  });
  const A* totals = group.over_rows(sums, scratch);
  const auto total = [&](int column, int what, int i) {
    return totals[(what * V + i) * group.team.columns + column];
  };
  // Means over the group: of v and v n; of k, k n and v k times the scale; of the others times its
  // square.
  A means[kOfN] = {};
  const A* scales = group.of_image(norm.scale) + group.first_channel();
#pragma unroll 1
  for (int j = 0; j < team.unit_columns; ++j) {
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const A s = scales[j * V + i];
#pragma unroll
      for (int what = 0; what < kOfN; ++what) {
        means[what] += total(group.first_column + j, what, i) * (what < kOfK   ? A(1)
                                                                 : what < kOfQ ? s
                                                                               : s * s);
      }
    }
  }
#pragma unroll
  for (int what = 0; what < kOfN; ++what) means[what] *= group.one_over_size;
  const A mean_v = means[kOfV];
  const A mean_vn = means[kOfVn];
  const A mean_k = means[kOfK];
  const A mean_kn = means[kOfKn];
  // Sums of p times what the three are sums of, where p = r (v - mean_v - n mean_vn).
  const auto with_p = [&](A of_v, A of_one, A of_n) {
    return r * (of_v - mean_v * of_one - mean_vn * of_n);
  };
  const A mean_pk = with_p(means[kOfVk], mean_k, mean_kn);
  const A mean_gn =
      with_p(means[kOfQv], means[kOfQ], means[kOfQn]) - r * (mean_kn * mean_v + mean_vn * mean_k);
  const A mean_gnn = with_p(means[kOfQvn], means[kOfQn], means[kOfQnn]) -
                     r * (mean_kn * mean_vn + mean_vn * mean_kn);
  const A along_n = mean_gnn + mean_pk;

  pixels.each([&](int at, const auto& values) {
    A of_gy[V];
    A of_x[V];
    for_elements(at, values, [&](int i, const Element<A>& e, A g, A v_value) {
      const A w = group.scale[i] * r * (v_value - mean_v - e.n * mean_vn);
      of_gy[i] = w * e.first;
      const A gn =
          group.scale[i] * g * (w * e.second - r * mean_vn * e.first) - r * mean_kn * v_value;
      of_x[i] = r * (gn - mean_gn - e.n * along_n);
    });
    store<T, V>(ggy + at, of_gy);
    store<T, V>(gx + at, of_x);
  });
  if (group.writes()) {
    const int64_t count = norm.images * norm.channels;
    A* to = gchannels + static_cast<int64_t>(group.image) * norm.channels + group.channel;
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const auto of = [&](int what) { return total(group.column, what, i); };
      const A s = group.scale[i];
      const A of_shift = s * with_p(of(kOfQv), of(kOfQ), of(kOfQn));
      to[i] =
          with_p(of(kOfVk), of(kOfK), of(kOfKn)) + s * with_p(of(kOfQvn), of(kOfQn), of(kOfQnn));
      to[count + i] = of_shift;
      if (norm.add.values != nullptr) {
        const A of_gn = s * of_shift - r * (mean_kn * of(kOfV) + mean_vn * s * of(kOfK));
        to[2 * count + i] =
            r * (of_gn - static_cast<A>(team.pixels) * mean_gn - of(kOfN) * along_n);
      }
    }
  }
  group.finish();
}

// Calls f(T(), Constant<V>(), Constant<Silu>(), Constant<Drop>()) for the image's type and the
// widest vectors, of `Widest` at most, that fit a group's channels.
template <int Widest, class F>
void dispatch(const GroupNorm& norm, const F& f) {
  if (norm.images == 0) return;
  const int64_t width = norm.channels / norm.groups;
  const auto of_type = [&](auto type, auto silu, auto drop) {
    if (width % Widest == 0) {
      f(type, Constant<Widest>(), silu, drop);
    } else if (width % 2 == 0) {
      f(type, Constant<2>(), silu, drop);
    } else {
      f(type, Constant<1>(), silu, drop);
    }
  };
  const auto either = [&](auto type) {
    using Yes = Constant<1>;
    using No = Constant<0>;
    const bool drop = norm.seed != nullptr;
    if (norm.silu && drop) of_type(type, Yes(), Yes());
    if (norm.silu && !drop) of_type(type, Yes(), No());
    if (!norm.silu && drop) of_type(type, No(), Yes());
    if (!norm.silu && !drop) of_type(type, No(), No());
  };
  with_type(norm.type, either);
}

template <class T, int V, class Kernel, class... Arguments>
void launch_groups(Kernel kernel, const GroupNorm& norm, int tensors, int sums, Stream stream,
                   Arguments... arguments) {
  const Team team =
      team_for<T, V>(norm.images, norm.pixels, norm.channels, norm.channels / norm.groups);
  launch_teams<T, V>(kernel, norm.images, team, tensors, sums, stream, norm, arguments...);
}

}  // namespace

void group_norm_forward(const GroupNorm& norm, void* y, Stream stream) {
  dispatch<4>(norm, [&](auto type, auto vector, auto silu, auto drop) {
    using T = decltype(type);
    constexpr int V = decltype(vector)::value;
    launch_groups<T, V>(forward_kernel<T, V, decltype(silu)::value, decltype(drop)::value>, norm, 1,
                        kForwardSums, stream, static_cast<T*>(y));
  });
}

void group_norm_backward(const GroupNorm& norm, const void* gy, const void* more, void* gx,
                         void* gchannels, Stream stream) {
  dispatch<4>(norm, [&](auto type, auto vector, auto silu, auto drop) {
    using T = decltype(type);
    constexpr int V = decltype(vector)::value;
    launch_groups<T, V>(backward_kernel<T, V, decltype(silu)::value, decltype(drop)::value>, norm,
                        2, kBackwardSums<V>, stream, static_cast<const T*>(gy),
                        static_cast<const T*>(more), static_cast<T*>(gx),
                        static_cast<typename Wide<T>::type*>(gchannels));
  });
}

void group_norm_backward_twice(const GroupNorm& norm, const void* v, const void* gy, void* ggy,
                               void* gx, void* gchannels, Stream stream) {
  dispatch<2>(norm, [&](auto type, auto vector, auto silu, auto drop) {
    using T = decltype(type);
    constexpr int V = decltype(vector)::value;
    launch_groups<T, V>(backward_twice_kernel<T, V, decltype(silu)::value, decltype(drop)::value>,
                        norm, 3, kTwiceSums<V>, stream, static_cast<const T*>(v),
                        static_cast<const T*>(gy), static_cast<T*>(ggy), static_cast<T*>(gx),
                        static_cast<typename Wide<T>::type*>(gchannels));
  });
}

}  // namespace ddaebm::ops::cuda
