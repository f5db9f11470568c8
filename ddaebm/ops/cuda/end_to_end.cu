// Many tensors copied or added end to end into one, in its type, or summed up each.

#include <algorithm>

#include "ddaebm/ops/cuda/launchers.h"
#include "ddaebm/ops/cuda/vectors.cuh"

namespace ddaebm::ops::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kEach = 8;      // elements of a thread
constexpr int kTensors = 96;  // of a launch: what its arguments have room for

// Tensor i has the blocks from first_block[i] on and goes to the places from `to[i]` on.
struct Tensors {
  const void* from[kTensors];
  int64_t to[kTensors + 1];
  unsigned first_block[kTensors + 1];
  int count;
};

template <class From, class To>
__global__ void __launch_bounds__(kThreads) end_to_end_kernel(Tensors tensors, To* out, bool add) {
  int low = 0;
  int high = tensors.count;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (tensors.first_block[middle] <= blockIdx.x ? low : high) = middle;
  }
  const auto* from = static_cast<const From*>(tensors.from[low]);
  To* to = out + tensors.to[low];
  const int64_t size = tensors.to[low + 1] - tensors.to[low];
  const int64_t first =
      static_cast<int64_t>(blockIdx.x - tensors.first_block[low]) * kThreads * kEach + threadIdx.x;
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    const int64_t i = first + j * kThreads;
    if (i >= size) continue;
    const auto value = static_cast<typename Wide<To>::type>(widen(from[i]));
    to[i] = narrow<To>(add ? widen(to[i]) + value : value);
  }
}

template <class From, class To>
void copy(const Piece* pieces, int64_t count, To* out, bool add, Stream stream) {
  int64_t place = 0;
  for (int64_t first = 0; first < count; first += kTensors) {
    Tensors tensors = {};
    tensors.count = static_cast<int>(std::min<int64_t>(kTensors, count - first));
    unsigned blocks = 0;
    for (int i = 0; i < tensors.count; ++i) {
      const Piece& piece = pieces[first + i];
      tensors.from[i] = piece.from;
      tensors.to[i] = place;
      tensors.first_block[i] = blocks;
      place += piece.count;
      blocks += static_cast<unsigned>((piece.count + kThreads * kEach - 1) / (kThreads * kEach));
    }
    tensors.to[tensors.count] = place;
    launch(end_to_end_kernel<From, To>, {blocks, kThreads}, stream, tensors, out, add);
  }
}

struct Summands {
  Piece pieces[kTensors];
};

// A warp a tensor.
template <class T>
__global__ void sums_kernel(Summands all, T* out) {
  const Piece& piece = all.pieces[blockIdx.x];
  const T* from = static_cast<const T*>(piece.from);
  T sum = 0;
  for (int64_t i = threadIdx.x; i < piece.count; i += 32) sum += from[i];
  sum = over_warp(sum);
  if (threadIdx.x == 0) out[blockIdx.x] = sum;
}

template <class T>
void sum_up(const Piece* pieces, int64_t count, T* out, Stream stream) {
  for (int64_t first = 0; first < count; first += kTensors) {
    const int64_t now = std::min<int64_t>(kTensors, count - first);
    Summands all = {};
    std::copy_n(pieces + first, now, all.pieces);
    launch(sums_kernel<T>, {static_cast<unsigned>(now), 32}, stream, all, out + first);
  }
}

}  // namespace

void sums_of_pieces(Type type, const Piece* pieces, int64_t count, void* out, Stream stream) {
  with_real_type(
      type, [&](auto real) { sum_up(pieces, count, static_cast<decltype(real)*>(out), stream); });
}

void end_to_end(Type from, const Piece* pieces, int64_t count, Type to, void* out, bool add,
                Stream stream) {
  with_type(from, [&](auto in_type) {
    with_type(to, [&](auto out_type) {
      using To = decltype(out_type);
      copy<decltype(in_type)>(pieces, count, static_cast<To*>(out), add, stream);
    });
  });
}

}  // namespace ddaebm::ops::cuda
