// FIR resampling of channels-last images with the taps (1, 3, 3, 1) / 8 along both axes.

#include "ddaebm/ops/cuda/launchers.h"
#include "ddaebm/ops/cuda/vectors.cuh"

namespace ddaebm::ops::cuda {
namespace {

// Where a thread is: V channels of a place that stands for several pixels of an image.
struct Spot {
  int line, column;
  unsigned channel;
};
template <int V>
__device__ inline Spot spot(unsigned at, unsigned channels, unsigned width) {
  const unsigned threads = channels / V;
  const unsigned pixel = at / threads;
  const unsigned line = pixel / width;
  return {static_cast<int>(line), static_cast<int>(pixel - line * width),
          (at - pixel * threads) * V};
}

// An image of V channels, with zeros around it.
template <class T, int V>
struct Padded {
  const T* image;
  int height, width;
  unsigned channels;

  __device__ Words<T, V> at(int line, int column) const {
    const bool within = line >= 0 && line < height && column >= 0 && column < width;
    if (!within) return {};
    return read<T, V>(image + static_cast<unsigned>(line * width + column) * channels);
  }
};

template <class T, int V>
__device__ inline Padded<T, V> input(const Fir& shape, const T* x, int64_t image,
                                     unsigned channel) {
  const int64_t pixels = shape.in_height * shape.in_width;
  return {x + image * pixels * shape.channels + channel, static_cast<int>(shape.in_height),
          static_cast<int>(shape.in_width), static_cast<unsigned>(shape.channels)};
}

// To twice the size. Of the four taps along an axis two meet pixels, the others zeros in between,
// and two outputs meet the same two pixels m and m + 1: 3/8 and 1/8 of them make place
// 2 m - 1 + pad, 1/8 and 3/8 the one after it. A thread makes such two along both axes.
template <class T, int V>
__global__ void fir_up_kernel(Places places, Fir shape, unsigned width, const T* x, T* y) {
  using A = typename Wide<T>::type;
  const auto place = places.mine();
  if (place.at >= places.count) return;
  const auto channels = static_cast<unsigned>(shape.channels);
  const Spot mine = spot<V>(place.at, channels, width);
  const int m = mine.line - shape.pad / 2;
  const int n = mine.column - shape.pad / 2;
  const auto from = input<T, V>(shape, x, place.image, mine.channel);
  const Words<T, V> corners[4] = {from.at(m, n), from.at(m, n + 1), from.at(m + 1, n),
                                  from.at(m + 1, n + 1)};
  const A gain = static_cast<A>(shape.gain / 64);
  A made[4][V];
#pragma unroll
  for (int k = 0; k < V; ++k) {
    const A upper = corners[0][k], upper_right = corners[1][k];
    const A lower = corners[2][k], lower_right = corners[3][k];
    const A upper_sums[2] = {3 * upper + upper_right, upper + 3 * upper_right};
    const A lower_sums[2] = {3 * lower + lower_right, lower + 3 * lower_right};
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      made[j][k] = gain * (3 * upper_sums[j] + lower_sums[j]);
      made[2 + j][k] = gain * (upper_sums[j] + 3 * lower_sums[j]);
    }
  }
  const auto out_width = static_cast<int>(shape.out_width);
  y += place.image * shape.out_height * out_width * channels + mine.channel;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int line = 2 * m - 1 + shape.pad + i / 2;
    const int column = 2 * n - 1 + shape.pad + i % 2;
    if (line < 0 || line >= shape.out_height || column < 0 || column >= out_width) continue;
    store<T, V>(y + static_cast<unsigned>(line * out_width + column) * channels, made[i]);
  }
}

// To the same size or half of it. A thread makes one pixel and the one below, which share lines.
template <class T, int V, int Down>
__global__ void fir_down_kernel(Places places, Fir shape, const T* x, T* y) {
  using A = typename Wide<T>::type;
  const auto place = places.mine();
  if (place.at >= places.count) return;
  const auto channels = static_cast<unsigned>(shape.channels);
  const auto width = static_cast<unsigned>(shape.out_width);
  const Spot mine = spot<V>(place.at, channels, width);
  const int top = 2 * mine.line * Down - shape.pad;
  const int left = mine.column * Down - shape.pad;
  const auto from = input<T, V>(shape, x, place.image, mine.channel);
  const auto tap = [](int k) { return k == 0 || k == 3 ? A(1) : A(3); };
  A sums[2][V] = {};
#pragma unroll
  for (int i = 0; i < 4 + Down; ++i) {
    Words<T, V> line[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) line[j] = from.at(top + i, left + j);
#pragma unroll
    for (int k = 0; k < V; ++k) {
      const A sum = (line[0][k] + line[3][k]) + 3 * (line[1][k] + line[2][k]);
      if (i < 4) sums[0][k] += tap(i) * sum;
      if (i >= Down) sums[1][k] += tap(i - Down) * sum;
    }
  }
  const A gain = static_cast<A>(shape.gain / 64);
  const int64_t pixels = shape.out_height * shape.out_width;
  y += place.image * pixels * channels + mine.channel;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int line = 2 * mine.line + i;
    if (line >= shape.out_height) continue;
#pragma unroll
    for (int k = 0; k < V; ++k) sums[i][k] *= gain;
    store<T, V>(
        y + (static_cast<unsigned>(line) * width + static_cast<unsigned>(mine.column)) * channels,
        sums[i]);
  }
}

template <class T, int V>
void launch(const Fir& shape, const void* x, void* y, cudaStream_t stream) {
  const auto* from = static_cast<const T*>(x);
  auto* to = static_cast<T*>(y);
  const auto places = [&](int64_t lines, int64_t columns) {
    return Places{shape.images, static_cast<unsigned>(lines * columns * (shape.channels / V))};
  };
  if (shape.up == 2) {
    // The last of them makes place `out - 1`.
    const auto pairs = [&](int64_t out) { return (out - shape.pad) / 2 + shape.pad / 2 + 1; };
    const auto width = pairs(shape.out_width);
    const auto all = places(pairs(shape.out_height), width);
    ops::cuda::launch(fir_up_kernel<T, V>, all.grid(), stream, all, shape,
                      static_cast<unsigned>(width), from, to);
  } else {
    const auto all = places((shape.out_height + 1) / 2, shape.out_width);
    const auto kernel = shape.down == 2 ? fir_down_kernel<T, V, 2> : fir_down_kernel<T, V, 1>;
    ops::cuda::launch(kernel, all.grid(), stream, all, shape, from, to);
  }
}

template <class T>
void launch(const Fir& shape, const void* x, void* y, cudaStream_t stream) {
  if (sizeof(T) == 2 && shape.channels % 8 == 0) {
    launch<T, 8>(shape, x, y, stream);
  } else if (shape.channels % 4 == 0) {
    launch<T, 4>(shape, x, y, stream);
  } else {
    launch<T, 1>(shape, x, y, stream);
  }
}

}  // namespace

void fir(const Fir& shape, const void* x, void* y, Stream stream) {
  const auto on = static_cast<cudaStream_t>(stream);
  with_type(shape.type, [&](auto type) { launch<decltype(type)>(shape, x, y, on); });
}

}  // namespace ddaebm::ops::cuda
