// Sums along rows that losses are made of, and their gradients: a warp a row.

#include "ddaebm/ops/cuda/launchers.h"
#include "ddaebm/ops/cuda/vectors.cuh"

namespace ddaebm::ops::cuda {
namespace {

constexpr int kRowsOfBlock = 4;  // a warp each
constexpr int kThreadsOfBlock = 32 * kRowsOfBlock;

// One term of the sum, and its slopes in b and c; see ops/row_sums.h.
template <class T>
struct Term {
  T value, in_b, in_c;
};
template <RowSumKind kind, class T>
__device__ Term<T> term(T a, T b, T c, T scale) {
  if constexpr (kind == RowSumKind::weighted_squares) {
    const T error = scale * b - a;
    return {error * error, T(2) * scale * error, T(0)};
  } else if constexpr (kind == RowSumKind::gaussian_nll) {
    const T variance = exp(c);
    const T inverse = T(1) / (T(1e-6) + variance);
    const T error = b - a;
    const T square = error * error * inverse;
    return {T(.5) * (c + square), error * inverse, T(.5) * (T(1) - square * variance * inverse)};
  } else {
    const T variance = exp(c);
    return {T(.5) * (b * b + variance - c - T(1)), b, T(.5) * (variance - T(1))};
  }
}

// Element j of row i; zero where there is no such matrix.
template <class T>
__device__ T element(const RowMatrix& matrix, int64_t i, int64_t j) {
  return matrix.values == nullptr ? T(0) : static_cast<const T*>(matrix.values)[i * matrix.row + j];
}
template <class T>
__device__ T of_row(const RowVector& vector, int64_t i, T otherwise) {
  if (vector.values == nullptr) return otherwise;
  return static_cast<const T*>(vector.values)[i * vector.stride];
}

template <RowSumKind kind, class T>
__global__ void __launch_bounds__(kThreadsOfBlock) row_sum_kernel(RowSums sums, T* out) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kRowsOfBlock + threadIdx.x / 32;
  if (i >= sums.rows) return;
  const T scale = of_row<T>(sums.scale, i, T(1));
  T sum = 0;
  for (int64_t j = threadIdx.x % 32; j < sums.columns; j += 32) {
    sum += term<kind, T>(element<T>(sums.a, i, j), element<T>(sums.b, i, j),
                         element<T>(sums.c, i, j), scale)
               .value;
  }
  sum = over_warp(sum);
  if (threadIdx.x % 32 == 0) {
    out[i] = static_cast<T>(sums.columns) * of_row<T>(sums.added, i, T(0)) +
             of_row<T>(sums.weight, i, T(1)) * sum;
  }
}

// gb and gc lie as dense rows.
template <RowSumKind kind, class T>
__global__ void __launch_bounds__(kThreadsOfBlock)
    row_sum_backward_kernel(RowSums sums, RowVector g, T* gb, T* gc) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kRowsOfBlock + threadIdx.x / 32;
  if (i >= sums.rows) return;
  const T scale = of_row<T>(sums.scale, i, T(1));
  const T given = of_row<T>(g, i, T(1)) * of_row<T>(sums.weight, i, T(1));
  for (int64_t j = threadIdx.x % 32; j < sums.columns; j += 32) {
    const auto at = term<kind, T>(element<T>(sums.a, i, j), element<T>(sums.b, i, j),
                                  element<T>(sums.c, i, j), scale);
    gb[i * sums.columns + j] = given * at.in_b;
    if (gc != nullptr) gc[i * sums.columns + j] = given * at.in_c;
  }
}

template <class F>
void with_kind(RowSumKind kind, const F& f) {
  using Kind = RowSumKind;
  if (kind == Kind::weighted_squares) f(std::integral_constant<Kind, Kind::weighted_squares>());
  if (kind == Kind::gaussian_nll) f(std::integral_constant<Kind, Kind::gaussian_nll>());
  if (kind == Kind::gaussian_kl) f(std::integral_constant<Kind, Kind::gaussian_kl>());
}

Grid grid_of(const RowSums& sums) {
  return {dim3(static_cast<unsigned>((sums.rows + kRowsOfBlock - 1) / kRowsOfBlock)),
          kThreadsOfBlock};
}

}  // namespace

void row_sum(const RowSums& sums, void* out, Stream stream) {
  with_real_type(sums.type, [&](auto real) {
    using T = decltype(real);
    with_kind(sums.kind, [&](auto kind) {
      launch(row_sum_kernel<decltype(kind)::value, T>, grid_of(sums), stream, sums,
             static_cast<T*>(out));
    });
  });
}

void row_sum_backward(const RowSums& sums, const RowVector& g, void* gb, void* gc, Stream stream) {
  with_real_type(sums.type, [&](auto real) {
    using T = decltype(real);
    with_kind(sums.kind, [&](auto kind) {
      launch(row_sum_backward_kernel<decltype(kind)::value, T>, grid_of(sums), stream, sums, g,
             static_cast<T*>(gb), static_cast<T*>(gc));
    });
  });
}

}  // namespace ddaebm::ops::cuda
