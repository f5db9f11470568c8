#pragma once

#include <cooperative_groups.h>

#include <cstdint>

#include "ddaebm/ops/cuda/vectors.cuh"

// How kernels walk over channels-last images when they need sums of channels: a team of blocks takes
// a span of neighbouring channels of one image, wide enough that threads read whole sectors of
// memory, and each block of it a part of the pixels. A team is one block, or a cluster of Hopper's.
namespace ddaebm::ops::cuda {

constexpr int kSpanThreads = 256;
constexpr int kSpanWarps = kSpanThreads / 32;
constexpr int kSpanSums = 10;  // that are made at once, at most

// How many channels a team takes, and of how many blocks it is.
struct Team {
  int width, blocks;
};

// A thread keeps to V channels, its column, and walks over pixels, every rows-th.
template <class T, int V>
struct Span {
  using A = typename Wide<T>::type;
  // Blocks are numbered along a team, then along the spans of an image, then along images.
  __device__ Span(int64_t pixels, int64_t channels_, Team team)
      : blocks(team.blocks),
        rank(static_cast<int>(blockIdx.x) % blocks),
        columns(team.width / V),
        rows(kSpanThreads / columns),
        column(static_cast<int>(threadIdx.x) % columns),
        row(static_cast<int>(threadIdx.x) / columns),
        image(blockIdx.x / blocks / (channels_ / team.width)),
        channel((blockIdx.x / blocks % (channels_ / team.width)) * team.width + column * V),
        channels(static_cast<int>(channels_)),
        offset(image * pixels * channels + channel) {
    const int part = (static_cast<int>(pixels) + blocks - 1) / blocks;
    first = row < rows ? rank * part + row : 0;
    end = row < rows ? min(static_cast<int>(pixels), (rank + 1) * part) : 0;
  }

  // Calls body(position) for the thread's pixels, positions counted from `offset`.
  template <class F>
  __device__ void for_pixels(const F& body) const {
    const int stop = end * channels;
    const int step = rows * channels;
#pragma unroll 4
    for (int at = first * channels; at < stop; at += step) body(at);
  }

  // Adds up the K values of each column's threads, over the team. Returns [K][columns] in `scratch`,
  // where it stays until the next call.
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
    if (blocks == 1) {
      __syncthreads();
      return totals;
    }
    return over_team(totals, K * columns);
  }

  // Writes the sums over pixels of the K values of each column, [K][columns], to out [N, C]: values
  // from..from + V of them are those of the thread's channels.
  __device__ void write_sums(const A* totals, int from, A* out) const {
    if (row != 0 || rank != 0) return;
#pragma unroll
    for (int i = 0; i < V; ++i) {
      out[image * channels + channel + i] = totals[(from + i) * columns + column];
    }
  }

  int blocks, rank;
  int columns, rows;
  int column, row;
  int64_t image, channel;
  int channels;
  int64_t offset;
  int first, end;  // of the thread's pixels

 private:
  // Adds up what each block of the team has in its `totals`.
  __device__ const A* over_team(A* totals, int count) const {
#if defined(DDAEBM_CUDA_EMULATION) || (defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900)
    const auto cluster = cooperative_groups::this_cluster();
    cluster.sync();
    constexpr int kEach = 3;  // values a thread adds up, as many as scratch has room for
    A sums[kEach];
#pragma unroll
    for (int k = 0; k < kEach; ++k) {
      const int i = static_cast<int>(threadIdx.x) + k * kSpanThreads;
      sums[k] = 0;
      if (i >= count) continue;
      for (int r = 0; r < blocks; ++r) sums[k] += cluster.map_shared_rank(totals, r)[i];
    }
    // All have read before any writes.
    cluster.sync();
#pragma unroll
    for (int k = 0; k < kEach; ++k) {
      const int i = static_cast<int>(threadIdx.x) + k * kSpanThreads;
      if (i < count) totals[i] = sums[k];
    }
    __syncthreads();
#endif
    return totals;
  }
};

// Elements of scratch that K sums need: K columns (rows + 2).
constexpr int kSpanColumns = kSpanThreads / 4;
constexpr int kSpanScratch = kSpanSums * (kSpanThreads + 2 * kSpanColumns);

// A team for images of this shape: the fewest channels, in multiples of `unit`, that make whole
// sectors and divide all channels; and enough blocks to keep the chip busy, each with several rows of
// pixels.
inline Team team_for(int64_t pixels, int64_t channels, int64_t unit, int vector, size_t bytes) {
  if (unit / vector > kSpanColumns) throw std::runtime_error("too many channels a group");
  static const bool clusters = [] {
    int device = 0;
    int major = 0;
    return cudaGetDevice(&device) == cudaSuccess &&
           cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) ==
               cudaSuccess &&
           major >= 9;
  }();
  int64_t width = unit;
  for (int64_t wider = unit; wider <= channels && wider / vector <= kSpanColumns; wider += unit) {
    const size_t span = static_cast<size_t>(wider) * bytes;
    if (channels % wider == 0 && span >= 64 && span % 32 == 0) {
      width = wider;
      break;
    }
  }
  int blocks = 1;
  const int64_t rows = kSpanThreads / (width / vector);
  while (clusters && blocks < 8 && pixels >= 2 * blocks * rows * 8) blocks *= 2;
  return {static_cast<int>(width), blocks};
}

template <class... Parameters, class... Arguments>
void launch_teams(void (*kernel)(Parameters...), int64_t teams, const Team& team, void* stream,
                  Arguments... arguments) {
  launch(kernel, dim3(static_cast<unsigned>(teams * team.blocks)), kSpanThreads,
         static_cast<unsigned>(team.blocks), stream, arguments...);
}

}  // namespace ddaebm::ops::cuda
