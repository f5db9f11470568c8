// What surrounds convolutions in a residual network, each in one pass over memory: sums of branches
// with biases, channels put together and taken apart. All on channels-last images.

#include "ddaebm/ops/cuda/launchers.h"
#include "ddaebm/ops/cuda/spans.cuh"

namespace ddaebm::ops::cuda {
namespace {

// Calls f(T(), Constant<V>()) for the type and the widest vectors that divide `channels`.
template <class F>
void dispatch(Type type, int64_t channels, const F& f) {
  const auto of_type = [&](auto element) {
    if (channels % 8 == 0) {
      f(element, Constant<8>());
    } else if (channels % 4 == 0) {
      f(element, Constant<4>());
    } else {
      f(element, Constant<1>());
    }
  };
  with_type(type, of_type);
}

// Of V elements each.
Places places_of(const Image& shape, int vector) {
  return {shape.images, static_cast<unsigned>(shape.pixels * shape.channels / vector)};
}

template <class T, int V>
__global__ void scaled_sum_kernel(Places places, unsigned channels, const T* a, const T* b,
                                  ChannelValues bias, typename Wide<T>::type gain, T* y) {
  using A = typename Wide<T>::type;
  const auto place = places.mine();
  if (place.at >= places.count) return;
  const int64_t i = place.image * places.count + place.at;
  A as[V];
  A bs[V];
  load<T, V>(a + i * V, as);
  load<T, V>(b + i * V, bs);
  const auto* of_image = static_cast<const A*>(bias.values) + place.image * bias.row;
  const unsigned c = place.at * V % channels;
#pragma unroll
  for (int k = 0; k < V; ++k) {
    as[k] = (as[k] + bs[k] + of_image[c + k]) * gain;
  }
  store<T, V>(y + i * V, as);
}

template <class T, int V>
__global__ void __launch_bounds__(kSpanThreads)
    scaled_with_sums_kernel(Team team, const T* g, typename Wide<T>::type gain, T* y,
                            typename Wide<T>::type* sums) {
  using A = typename Wide<T>::type;
  DDAEBM_SHARED_LAUNCHED(A, scratch);
  const Span<T, V> span(team);
  g += span.offset;
  if (y != nullptr) y += span.offset;
  A mine[V] = {};
  span.for_pixels([&](int at) {
    A v[V];
    load<T, V>(g + at, v);
#pragma unroll
    for (int i = 0; i < V; ++i) {
      v[i] *= gain;
      mine[i] += v[i];
    }
    if (y != nullptr) store<T, V>(y + at, v);
  });
  const A* totals = span.over_rows(mine, scratch);
  if (span.writes()) {
#pragma unroll
    for (int i = 0; i < V; ++i) {
      sums[static_cast<int64_t>(span.image) * team.channels + span.channel + i] =
          totals[i * team.columns + span.column];
    }
  }
  span.finish();
}

// A thread moves V channels of one pixel, from or to a place in `whole`.
template <class T, int V, bool Together>
__global__ void channels_kernel(Places places, unsigned channels, unsigned first, T* a, T* b,
                                T* whole) {
  const auto mine = places.mine();
  if (mine.at >= places.count) return;
  using Piece = Vector<T, V>;
  const unsigned pixel = mine.at * V / channels;
  const unsigned c = mine.at * V - pixel * channels;
  const int64_t pixels = places.count * V / channels;
  const int64_t all_pixels = mine.image * pixels + pixel;
  auto* part = reinterpret_cast<Piece*>(
      c < first ? a + all_pixels * first + c : b + all_pixels * (channels - first) + (c - first));
  auto* place = reinterpret_cast<Piece*>(whole + (mine.image * places.count + mine.at) * V);
  if (Together) {
    *place = *part;
  } else {
    *part = *place;
  }
}

template <bool Together>
void move_channels(const Image& shape, int64_t first, void* a, void* b, void* whole,
                   Stream stream) {
  const int64_t in_common = (first % 8 == 0 && shape.channels % 8 == 0)   ? 8
                            : (first % 4 == 0 && shape.channels % 4 == 0) ? 4
                                                                          : 1;
  dispatch(shape.type, in_common, [&](auto type, auto vector) {
    using T = decltype(type);
    constexpr int V = decltype(vector)::value;
    const Places places = places_of(shape, V);
    launch(channels_kernel<T, V, Together>, places.grid(), stream, places,
           static_cast<unsigned>(shape.channels), static_cast<unsigned>(first), static_cast<T*>(a),
           static_cast<T*>(b), static_cast<T*>(whole));
  });
}

}  // namespace

void scaled_sum(const Image& shape, const void* a, const void* b, const ChannelValues& bias,
                double gain, void* y, Stream stream) {
  dispatch(shape.type, shape.channels, [&](auto type, auto vector) {
    using T = decltype(type);
    using A = typename Wide<T>::type;
    constexpr int V = decltype(vector)::value;
    const Places places = places_of(shape, V);
    launch(scaled_sum_kernel<T, V>, places.grid(), stream, places,
           static_cast<unsigned>(shape.channels), static_cast<const T*>(a),
           static_cast<const T*>(b), bias, static_cast<A>(gain), static_cast<T*>(y));
  });
}

void scaled_with_sums(const Image& shape, const void* g, double gain, void* y, void* sums,
                      Stream stream) {
  dispatch(shape.type, shape.channels, [&](auto type, auto vector) {
    using T = decltype(type);
    using A = typename Wide<T>::type;
    constexpr int V = decltype(vector)::value;
    if (shape.images == 0) return;
    const Team team = team_for<T, V>(shape.images, shape.pixels, shape.channels, V);
    launch_teams<T, V>(scaled_with_sums_kernel<T, V>, shape.images, team, 0, V, stream,
                       static_cast<const T*>(g), static_cast<A>(gain), static_cast<T*>(y),
                       static_cast<A*>(sums));
  });
}

void concatenate(const Image& shape, int64_t first_channels, const void* a, const void* b, void* y,
                 Stream stream) {
  move_channels<true>(shape, first_channels, const_cast<void*>(a), const_cast<void*>(b), y, stream);
}

void separate(const Image& shape, int64_t first_channels, const void* y, void* a, void* b,
              Stream stream) {
  move_channels<false>(shape, first_channels, a, b, const_cast<void*>(y), stream);
}

}  // namespace ddaebm::ops::cuda
