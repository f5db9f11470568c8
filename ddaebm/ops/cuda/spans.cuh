#pragma once

#include <cstdint>

#include "ddaebm/ops/cuda/vectors.cuh"

// How kernels walk over channels-last images when they need sums of channels: a block takes a span
// of neighbouring channels of one image, wide enough that its threads read whole sectors of memory.
namespace ddaebm::ops::cuda {

constexpr int kSpanThreads = 256;
constexpr int kSpanWarps = kSpanThreads / 32;
constexpr int kSpanSums = 5;  // that are made at once, at most

// A thread keeps to V channels, its column, and walks over pixels, every rows-th.
template <class T, int V>
struct Span {
  using A = typename Wide<T>::type;
  // Blocks are numbered along the spans of an image, then along images.
  __device__ Span(int64_t pixels_, int64_t channels_, int width_)
      : width(width_),
        columns(width / V),
        rows(kSpanThreads / columns),
        column(static_cast<int>(threadIdx.x) % columns),
        row(static_cast<int>(threadIdx.x) / columns),
        image(blockIdx.x / (channels_ / width)),
        channel((blockIdx.x % (channels_ / width)) * width + column * V),
        channels(static_cast<int>(channels_)),
        pixels(row < rows ? static_cast<int>(pixels_) : 0),
        offset(image * pixels_ * channels + channel) {}

  // Calls body(position) for the thread's pixels, positions counted from `offset`.
  template <class F>
  __device__ void for_pixels(const F& body) const {
    const int end = pixels * channels;
    const int step = rows * channels;
#pragma unroll 4
    for (int at = row * channels; at < end; at += step) body(at);
  }

  // Adds up the K values of each column's threads. Returns [K][columns] in `scratch`, where it stays
  // until the next call.
  template <int K>
  __device__ const A* over_rows(const A (&values)[K], A* scratch) const {
    static_assert(K <= kSpanSums);
    A* totals = scratch + K * columns * (rows + 1);
    __syncthreads();
    if (row < rows) {
#pragma unroll
      for (int k = 0; k < K; ++k) scratch[(k * columns + column) * (rows + 1) + row] = values[k];
    }
    __syncthreads();
    const int lane = static_cast<int>(threadIdx.x) % 32;
    for (int i = static_cast<int>(threadIdx.x) / 32; i < K * columns; i += kSpanWarps) {
      A sum = 0;
      for (int r = lane; r < rows; r += 32) sum += scratch[i * (rows + 1) + r];
#pragma unroll
      for (int far = 16; far > 0; far /= 2) sum += __shfl_down_sync(0xffffffffU, sum, far);
      if (lane == 0) totals[i] = sum;
    }
    __syncthreads();
    return totals;
  }

  // Writes the sums over pixels of the V values each thread found, to out [N, C].
  __device__ void write_sums(const A (&mine)[V], A* scratch, A* out) const {
    constexpr int K = V < 4 ? V : 4;
#pragma unroll
    for (int from = 0; from < V; from += K) {
      A part[K];
#pragma unroll
      for (int k = 0; k < K; ++k) part[k] = mine[from + k];
      const A* totals = over_rows(part, scratch);
      if (row == 0) {
#pragma unroll
        for (int k = 0; k < K; ++k) {
          out[image * channels + channel + from + k] = totals[k * columns + column];
        }
      }
    }
  }

  int width, columns, rows;
  int column, row;
  int64_t image, channel;
  int channels, pixels;
  int64_t offset;
};

// Elements of scratch that any span needs: K columns (rows + 2), where columns rows is at most the
// number of threads.
constexpr int kSpanScratch = kSpanSums * 3 * kSpanThreads;

// The fewest channels, in multiples of `unit`, that make whole sectors and divide all channels.
inline int span_width(int64_t channels, int64_t unit, size_t bytes) {
  for (int64_t width = unit; width <= channels && width <= kSpanThreads; width += unit) {
    const size_t span = static_cast<size_t>(width) * bytes;
    if (channels % width == 0 && span >= 64 && span % 32 == 0) return static_cast<int>(width);
  }
  return static_cast<int>(unit);
}

}  // namespace ddaebm::ops::cuda
