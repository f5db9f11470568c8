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
constexpr int kSpanWarps = kSpanThreads / 32;
// Of shared memory for what a block holds of 1, 2, 3 tensors: as measured on an H200, where more
// leaves room for too few blocks.
constexpr size_t kHeldBytes[] = {32 * 1024, 48 * 1024, 72 * 1024};

// How a kernel's work is shared out. A thread of a row of a block has V channels; rows are powers
// of two of threads, so that they fit warps.
struct Team {
  int width;          // channels of a team
  int log_blocks;     // it has 2^log_blocks
  int columns;        // threads of a row with something to do, width / V
  int log_columns;    // a row has 2^log_columns in all
  int pixels;         // of an image
  int block_pixels;   // of a block
  int held;           // of a thread, that have a place in shared memory
  int channels;       // of an image
  unsigned spans;     // of an image, channels / width
  int unit_columns;   // threads of a row whose channels belong together
  double unit_share;  // of an element among those of its unit
};

// A thread keeps to V channels, its column, and walks over pixels, every rows-th.
template <class T, int V>
struct Span {
  using A = typename Wide<T>::type;
  // Blocks are numbered along a team, then along the spans of an image, then along images.
  __device__ explicit Span(const Team& team_)
      : team(team_),
        rank(static_cast<int>(blockIdx.x) & ((1 << team.log_blocks) - 1)),
        image(static_cast<int>((blockIdx.x >> team.log_blocks) / team.spans)),
        span(static_cast<int>(blockIdx.x >> team.log_blocks) -
             image * static_cast<int>(team.spans)),
        column(static_cast<int>(threadIdx.x) & ((1 << team.log_columns) - 1)),
        row(static_cast<int>(threadIdx.x) >> team.log_columns),
        channel(span * team.width + min(column, team.columns - 1) * V),
        offset(static_cast<int64_t>(image) * team.pixels * team.channels + channel) {
    const int rows = kSpanThreads >> team.log_columns;
    start = (rank * team.block_pixels + row) * team.channels;
    stop = column < team.columns ? min(team.pixels, (rank + 1) * team.block_pixels) * team.channels
                                 : 0;
    step = rows * team.channels;
  }

  // Calls body(position) for the thread's pixels, positions counted from `offset`.
  template <class F>
  __device__ void for_pixels(const F& body) const {
#pragma unroll 4
    for (int at = start; at < stop; at += step) body(at);
  }

  // Adds up the K values of each column's threads, over the team. Returns [K][columns] in
  // `scratch`, of span_scratch(K) bytes. Once a kernel: its end is `finish`.
  template <int K>
  __device__ const A* over_rows(A (&values)[K], A* scratch) const {
    for (int far = 16; far >= 1 << team.log_columns; far /= 2) {
#pragma unroll
      for (int k = 0; k < K; ++k) values[k] += __shfl_xor_sync(0xffffffffU, values[k], far);
    }
    // Each warp leaves one value a column.
    const int count = K * team.columns;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    if (lane < team.columns) {
      A* mine = scratch + static_cast<int>(threadIdx.x) / 32 * count + lane;
#pragma unroll
      for (int k = 0; k < K; ++k) mine[k * team.columns] = values[k];
    }
    A* totals = scratch + kSpanWarps * count;
    __syncthreads();
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < count; i += kSpanThreads) {
      A sum = 0;
#pragma unroll
      for (int warp = 0; warp < kSpanWarps; ++warp) sum += scratch[warp * count + i];
      totals[i] = sum;
    }
    if (team.log_blocks > 0) return over_team(totals, count);
    __syncthreads();
    return totals;
  }

  // Whether the thread is the one of its channels that writes what all know.
  __device__ bool writes() const { return row == 0 && rank == 0 && column < team.columns; }

  // No block leaves while others may read its sums.
  __device__ void finish() const {
#ifdef DDAEBM_CLUSTERS
    if (team.log_blocks > 0) cooperative_groups::this_cluster().barrier_wait();
#endif
  }

  const Team& team;
  int rank, image, span;
  int column, row;
  int channel;
  int64_t offset;
  int start, stop, step;  // of the thread's pixels

 private:
  // Adds up what each block of the team has in its `totals`; the result lies behind them.
  __device__ const A* over_team(A* totals, int count) const {
#ifdef DDAEBM_CLUSTERS
    const auto cluster = cooperative_groups::this_cluster();
    cluster.sync();
    A* all = totals + count;
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < count; i += kSpanThreads) {
      A sum = 0;
#pragma unroll 2
      for (int r = 0; r < 1 << team.log_blocks; ++r) sum += cluster.map_shared_rank(totals, r)[i];
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

// The thread's pixels of N tensors, for two passes over them: read once as far as shared memory has
// room. Each thread has places of its own there, and fills them without waiting.
template <class T, int V, int N>
class Pixels {
 public:
  // `places`: room for N held pixels of every thread.
  template <class... Pointers>
  __device__ Pixels(const Span<T, V>& span, T* places, Pointers... tensors)
      : span_(span), mine_(places + threadIdx.x * V), tensors_{tensors...} {
    int at = span.start;
    for (int j = 0; j < span.team.held && at < span.stop; ++j, at += span.step) {
#pragma unroll
      for (int n = 0; n < N; ++n) copy_async<T, V>(place(j, n), tensors_[n] + at);
    }
  }

  // Calls body(position, values), each tensor's values as Words.
  template <class F>
  __device__ void each(const F& body) const {
    wait_for_copies();
    int at = span_.start;
#pragma unroll 2
    for (int j = 0; j < span_.team.held && at < span_.stop; ++j, at += span_.step) {
      Words<T, V> values[N];
#pragma unroll
      for (int n = 0; n < N; ++n) values[n] = read<T, V, /*Global=*/false>(place(j, n));
      body(at, values);
    }
#pragma unroll 1
    for (; at < span_.stop; at += span_.step) {
      Words<T, V> values[N];
#pragma unroll
      for (int n = 0; n < N; ++n) values[n] = read<T, V>(tensors_[n] + at);
      body(at, values);
    }
  }

 private:
  __device__ T* place(int j, int n) const { return mine_ + (j * N + n) * (kSpanThreads * V); }

  const Span<T, V>& span_;
  T* mine_;
  const T* tensors_[N];
};

// Bytes that over_rows needs for so many sums.
template <class T>
__host__ __device__ size_t span_scratch(const Team& team, int sums) {
  const auto bytes =
      static_cast<size_t>(sums * (kSpanWarps + 2) * team.columns) * sizeof(typename Wide<T>::type);
  return (bytes + 15) / 16 * 16;
}

// Where Pixels' places begin, behind that.
template <class T>
__device__ T* places(void* scratch, const Team& team, int sums) {
  return reinterpret_cast<T*>(static_cast<char*>(scratch) + span_scratch<T>(team, sums));
}

// A team for images of this shape: the fewest channels, in multiples of `unit`, that make whole
// sectors and divide all channels; more of them where images are so small that threads have little
// to do and so many that the device has enough blocks all the same; and as many blocks as leave a
// thread sixteen pixels, if a cluster has so many.
template <class T, int V>
Team team_for(int64_t images, int64_t pixels, int64_t channels, int64_t unit) {
  static const bool clusters = device_attribute(cudaDevAttrComputeCapabilityMajor, 0) >= 9;
  static const int processors = device_attribute(cudaDevAttrMultiProcessorCount, 100);
  int64_t width = unit;
  for (int64_t wider = unit; wider <= channels && wider <= 32 * V; wider += unit) {
    const size_t span = static_cast<size_t>(wider) * sizeof(T);
    if (channels % wider == 0 && span >= 64 && span % 32 == 0) {
      width = wider;
      break;
    }
  }
  const auto enough_blocks = [&](int64_t wider) {
    return images * (channels / wider) >= 2 * processors;
  };
  while (2 * width <= 32 * V && channels % (2 * width) == 0 && enough_blocks(2 * width) &&
         pixels * (width / V) < 8 * kSpanThreads) {
    width *= 2;
  }
  Team team = {};
  team.width = static_cast<int>(width);
  team.columns = team.width / V;
  team.unit_columns = static_cast<int>(unit) / V;
  team.unit_share = 1.0 / (static_cast<double>(pixels) * static_cast<double>(unit));
  while (1 << team.log_columns < team.columns) ++team.log_columns;
  if (team.log_columns > 5) throw std::runtime_error("too many channels a group for its kernel");
  const int rows = kSpanThreads >> team.log_columns;
  team.pixels = static_cast<int>(pixels);
  team.channels = static_cast<int>(channels);
  team.spans = static_cast<unsigned>(channels / width);
  while (clusters && team.log_blocks < 3 && pixels > (rows << team.log_blocks) * 16) {
    ++team.log_blocks;
  }
  team.block_pixels = (team.pixels + (1 << team.log_blocks) - 1) >> team.log_blocks;
  return team;
}

// A kernel that reads `tensors` tensors by Pixels and makes `sums` sums a column by over_rows,
// whose scratch comes first.
template <class T, int V, class... Parameters, class... Arguments>
void launch_teams(void (*kernel)(Parameters...), int64_t images, Team team, int tensors, int sums,
                  void* stream, Arguments... arguments) {
  const size_t scratch = span_scratch<T>(team, sums);
  const size_t pixel = sizeof(T) * V * kSpanThreads * static_cast<size_t>(tensors);
  const int rows = kSpanThreads >> team.log_columns;
  if (tensors > 0) {
    const size_t room = std::min(kHeldBytes[tensors - 1], most_shared_bytes() - scratch);
    team.held = std::min((team.block_pixels + rows - 1) / rows, static_cast<int>(room / pixel));
  }
  const unsigned blocks = 1U << team.log_blocks;
  launch(kernel,
         {dim3(static_cast<unsigned>(images) * team.spans * blocks), kSpanThreads, blocks,
          scratch + pixel * static_cast<size_t>(team.held)},
         stream, team, arguments...);
}

}  // namespace ddaebm::ops::cuda
