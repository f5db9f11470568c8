#pragma once

#include <algorithm>
#include <cstdint>

#include <cooperative_groups.h>

#include "ddaebm/ops/cuda/vectors.cuh"

// How kernels walk over channels-last images when they need sums of channels: a team of blocks
// takes a span of neighbouring channels of one image, wide enough that threads read whole sectors
// of memory, and each block of it a part of the pixels. A team is one block, or a cluster of
// Hopper's.
#if defined(DDAEBM_CUDA_EMULATION) || (defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900)
#define DDAEBM_CLUSTERS
#endif

namespace ddaebm::ops::cuda {

constexpr int kSpanThreads = 256;

// How many pixels a thread keeps in registers between its passes over them: 64 bytes of a tensor.
template <class T, int V>
constexpr int held_pixels() {
  constexpr int kPixels = 64 / static_cast<int>(sizeof(T) * V);
  return kPixels < 1 ? 1 : kPixels > 16 ? 16 : kPixels;
}

// How many channels a team takes, and of how many blocks it is.
struct Team {
  int width, blocks;
};

// The threads of a row of a block, each with V channels: a power of two, so that rows fit warps.
__host__ __device__ inline int padded_columns(int width, int vector) {
  int padded = 1;
  while (padded * vector < width) padded *= 2;
  return padded;
}

// A thread keeps to V channels, its column, and walks over pixels, every rows-th.
template <class T, int V>
struct Span {
  using A = typename Wide<T>::type;
  // Blocks are numbered along a team, then along the spans of an image, then along images.
  __device__ Span(int64_t pixels, int64_t channels_, Team team)
      : blocks(team.blocks),
        rank(static_cast<int>(blockIdx.x) % blocks),
        columns(team.width / V),
        padded(padded_columns(team.width, V)),
        column(static_cast<int>(threadIdx.x) % padded),
        row(static_cast<int>(threadIdx.x) / padded),
        image(blockIdx.x / blocks / (channels_ / team.width)),
        channel((blockIdx.x / blocks % (channels_ / team.width)) * team.width +
                min(column, columns - 1) * V),
        channels(static_cast<int>(channels_)),
        offset(image * pixels * channels + channel) {
    const int rows = kSpanThreads / padded;
    const int part = (static_cast<int>(pixels) + blocks - 1) / blocks;
    start = (rank * part + row) * channels;
    stop = column < columns ? min(static_cast<int>(pixels), (rank + 1) * part) * channels : 0;
    step = rows * channels;
  }

  // Calls body(position) for the thread's pixels, positions counted from `offset`.
  template <class F>
  __device__ void for_pixels(const F& body) const {
#pragma unroll 4
    for (int at = start; at < stop; at += step) body(at);
  }

  // Adds up the K values of each column's threads, over the team. Returns [K][columns] in
  // `scratch`, which has room for span_scratch(K). Once a kernel: its end is `finish`.
  template <int K>
  __device__ const A* over_rows(const A (&values)[K], A* scratch) const {
    const int together = max(32, padded);  // threads that leave one value a column
    const int parts = kSpanThreads / together;
    A* totals = scratch + K * parts * columns;
#pragma unroll
    for (int k = 0; k < K; ++k) {
      A sum = values[k];
      for (int far = 16; far >= padded; far /= 2) sum += __shfl_xor_sync(0xffffffffU, sum, far);
      if (static_cast<int>(threadIdx.x) % together < columns) {
        scratch[(static_cast<int>(threadIdx.x) / together * K + k) * columns + column] = sum;
      }
    }
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < K * columns; i += kSpanThreads) {
      A sum = 0;
      for (int part = 0; part < parts; ++part) sum += scratch[part * K * columns + i];
      totals[i] = sum;
    }
    if (blocks > 1) return over_team(totals, K * columns);
    __syncthreads();
    return totals;
  }

  // Whether the thread is the one of its channels that writes what all know.
  __device__ bool writes() const { return row == 0 && rank == 0 && column < columns; }

  // No block leaves while others may read its sums.
  __device__ void finish() const {
#ifdef DDAEBM_CLUSTERS
    if (blocks > 1) cooperative_groups::this_cluster().barrier_wait();
#endif
  }

  int blocks, rank;
  int columns, padded;
  int column, row;
  int64_t image, channel;
  int channels;
  int64_t offset;
  int start, stop, step;  // of the thread's pixels

 private:
  // Adds up what each block of the team has in its `totals`; the result lies behind them.
  __device__ const A* over_team(A* totals, int count) const {
#ifdef DDAEBM_CLUSTERS
    const auto cluster = cooperative_groups::this_cluster();
    cluster.sync();
    A* all = totals + count;
    for (int i = static_cast<int>(threadIdx.x); i < count; i += kSpanThreads) {
      A sum = 0;
      for (int r = 0; r < blocks; ++r) sum += cluster.map_shared_rank(totals, r)[i];
      all[i] = sum;
    }
    cluster.barrier_arrive();
    __syncthreads();
    return all;
#else
    return totals;
#endif
  }
};

// The thread's pixels of N tensors, read once as far as they fit into registers.
template <class T, int V, int N>
class Pixels {
 public:
  template <class... Pointers>
  __device__ explicit Pixels(const Span<T, V>& span, Pointers... tensors)
      : span_(span), tensors_{tensors...} {
#pragma unroll
    for (int j = 0; j < kHeld; ++j) {
      const int at = span.start + j * span.step;
      if (at < span.stop) read_all(at, held_[j]);
    }
  }

  // Calls body(position, values), each tensor's values as Words.
  template <class F>
  __device__ void each(const F& body) const {
#pragma unroll
    for (int j = 0; j < kHeld; ++j) {
      const int at = span_.start + j * span_.step;
      if (at >= span_.stop) continue;
      Words<T, V> values[N];
#pragma unroll
      for (int n = 0; n < N; ++n) {
        values[n] = held_[j][n];
#ifndef DDAEBM_CUDA_EMULATION
        // Held as it is: else the compiler keeps what a first pass made of it, in more registers.
#pragma unroll
        for (auto& word : values[n].at) asm volatile("" : "+r"(word));
#endif
      }
      body(at, values);
    }
    for (int at = span_.start + kHeld * span_.step; at < span_.stop; at += span_.step) {
      Words<T, V> values[N];
      read_all(at, values);
      body(at, values);
    }
  }

 private:
  static constexpr int kHeld = held_pixels<T, V>();
  __device__ void read_all(int at, Words<T, V> (&to)[N]) const {
#pragma unroll
    for (int n = 0; n < N; ++n) to[n] = read<T, V>(tensors_[n] + at);
  }

  const Span<T, V>& span_;
  const T* tensors_[N];
  Words<T, V> held_[kHeld][N];
};

// A team for images of this shape: the fewest channels, in multiples of `unit`, that make whole
// sectors and divide all channels; and enough blocks that threads can hold their pixels.
template <class T, int V>
Team team_for(int64_t pixels, int64_t channels, int64_t unit) {
  static const bool clusters = [] {
    int device = 0;
    int major = 0;
    return cudaGetDevice(&device) == cudaSuccess &&
           cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) ==
               cudaSuccess &&
           major >= 9;
  }();
  int64_t width = unit;
  for (int64_t wider = unit; wider <= channels && wider <= V * kSpanThreads / 4; wider += unit) {
    const size_t span = static_cast<size_t>(wider) * sizeof(T);
    if (channels % wider == 0 && span >= 64 && span % 32 == 0) {
      width = wider;
      break;
    }
  }
  int blocks = 1;
  const int64_t rows = kSpanThreads / padded_columns(static_cast<int>(width), V);
  while (clusters && blocks < 8 && pixels > blocks * rows * held_pixels<T, V>()) blocks *= 2;
  return {static_cast<int>(width), blocks};
}

// A kernel that makes `sums` sums a column by over_rows.
template <class T, int V, class... Parameters, class... Arguments>
void launch_teams(void (*kernel)(Parameters...), int64_t images, int64_t channels, const Team& team,
                  int sums, void* stream, Arguments... arguments) {
  const int padded = padded_columns(team.width, V);
  const int parts = kSpanThreads / std::max(32, padded);
  const size_t scratch =
      static_cast<size_t>(sums * (parts + 2) * (team.width / V)) * sizeof(typename Wide<T>::type);
  if (padded > kSpanThreads || scratch > kSharedBytes) {
    throw std::runtime_error("too many channels a group for its kernel");
  }
  const auto blocks = static_cast<unsigned>(images * (channels / team.width) * team.blocks);
  launch(kernel, {blocks, kSpanThreads, static_cast<unsigned>(team.blocks), scratch}, stream,
         arguments...);
}

}  // namespace ddaebm::ops::cuda
