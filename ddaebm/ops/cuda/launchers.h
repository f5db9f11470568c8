#pragma once

#include <cstdint>

#include "ddaebm/ops/bend.h"
#include "ddaebm/ops/row_sum_kind.h"

// The GPU kernels, behind plain pointers: no LibTorch here, so that nvcc alone compiles them.
// Images are channels last, [N, H, W, C]; sums are made in float32, or float64 for float64 images.
namespace ddaebm::ops::cuda {

enum class Type { float32, float64, bfloat16 };
using Stream = void*;  // a cudaStream_t

// Values of channels [N, C], in float32 or float64 as sums are; `row` is the distance from one
// image's to the next one's, 0 where all images share them.
struct ChannelValues {
  const void* values;
  int64_t row;
};

struct GroupNorm {
  Type type;
  int64_t images, pixels, channels, groups;
  bool silu;
  double eps;
  const void* x;
  ChannelValues scale, shift;
  ChannelValues add;     // to x before all else; may be null
  uint32_t dropped;      // of 65,536 elements
  double kept_gain;      // what the others are multiplied by
  const uint64_t* seed;  // of dropout; null without it
  int64_t salt;          // tells layers apart that share a seed
  void* mean;            // [N, G]
  void* inverse;         // [N, G], one over the deviation
};
// Writes y, mean and inverse.
void group_norm_forward(const GroupNorm& norm, void* y, Stream stream);
// The gradients in x, plus `more` if that is not null, and in scale, shift and what was added,
// gchannels [3, N, C]; the third is not written where nothing was added, none where gchannels is
// null.
void group_norm_backward(const GroupNorm& norm, const void* gy, const void* more, void* gx,
                         void* gchannels, Stream stream);
// The gradients of <v, gx> in gy and x, and in the channels' values.
void group_norm_backward_twice(const GroupNorm& norm, const void* v, const void* gy, void* ggy,
                               void* gx, void* gchannels, Stream stream);

// An image's shape, pixels [H W] together.
struct Image {
  Type type;
  int64_t images, pixels, channels;
};
// y = (a + b + bias) gain.
void scaled_sum(const Image& shape, const void* a, const void* b, const ChannelValues& bias,
                double gain, void* y, Stream stream);
// y = g gain, and its sums over pixels [N, C]; y may be null.
void scaled_with_sums(const Image& shape, const void* g, double gain, void* y, void* sums,
                      Stream stream);
// Channels of a, then those of b, side by side in y; and back. `shape` is y's.
void concatenate(const Image& shape, int64_t first_channels, const void* a, const void* b, void* y,
                 Stream stream);
void separate(const Image& shape, int64_t first_channels, const void* y, void* a, void* b,
              Stream stream);

struct Rows {
  Type type;
  int64_t count, size;
};
// With centred = h - sum a h and all = centred gs + a b, row by row:
// of_ga = a centred, of_s = all - a sum all.
void softmax_twice(const Rows& rows, const void* a, const void* h, const void* gs, const void* b,
                   void* of_ga, void* of_s, Stream stream);

// Each output is `gain` times the sum of the (1, 3, 3, 1) / 8 taps along both axes over the input
// with up - 1 zeros between its pixels, `pad` further zeros before it, every down-th place.
struct Fir {
  Type type;
  int64_t images, channels, in_height, in_width, out_height, out_width;
  int up, down, pad;
  double gain;
};
void fir(const Fir& shape, const void* x, void* y, Stream stream);

// What a dense layer does beside its products, see ops/dense_kernels.h: matrices [rows, columns],
// float32 or float64, with the bias of row i in row table_row_of[i] of the table, or in its only
// one where that is null. Where there is a product, it is made first, into the matrix that each
// begins with. Gradients of a slope come as a sum for each of dense_blocks(...) blocks.
struct Product {
  const void *a, *b;  // [rows, inner], [inner, columns]; a is null where there is none
  int inner;
  int64_t a_row_stride;                     // its elements lie side by side
  int64_t b_inner_stride, b_column_stride;  // one of them is 1
  bool aligned;  // whether every fourth element of a begins at a multiple of 16 bytes
};
struct Dense {
  Type type;
  int64_t rows, columns;
  const void* table;  // null where nothing is added
  int64_t table_rows;
  const int64_t* table_row_of;
  Product product;
};
struct BatchNorm {
  const void *scale, *shift;
  void *running_mean, *running_variance;
  double momentum, eps;
};
int64_t dense_blocks(int64_t columns, bool product);
// What is added behind a PReLU or ahead of a smooth bend: row row_of[i] of `table` to row i; table
// may be null.
struct AddedRows {
  const void* table = nullptr;
  const int64_t* row_of = nullptr;
};
// Without a PReLU its slope is null, and of what else there is: y; h, gh and g_slope; h and
// g_slope; nothing; g_slope.
void bias_prelu(const Dense& dense, void* h, const void* slope, const AddedRows& after, void* y,
                Stream stream);
// Of SiLU and softplus; `more` may be null.
void bias_bend(const Dense& dense, void* h, const AddedRows& before, Bend bend, void* y,
               Stream stream);
void bend_backward(const Dense& dense, void* g, const void* h, Bend bend, const void* more,
                   void* gh, Stream stream);
void bend_backward_twice(const Dense& dense, void* u, const void* gy, const void* h, Bend bend,
                         void* of_gy, void* of_h, Stream stream);
void prelu_backward(const Dense& dense, void* g, const void* h, const void* slope, void* gh,
                    Stream stream);
void bias_prelu_backward(const Dense& dense, void* g, const void* h, const void* slope, void* gh,
                         void* g_table, void* g_slope, Stream stream);
void bias_prelu_tangent(const Dense& dense, void* u, const void* weight, const void* h,
                        const void* slope, const void* dy, void* g_table, void* g_slope,
                        Stream stream);
void bias_norm_prelu(const Dense& dense, const BatchNorm& norm, void* h, const void* slope, void* y,
                     void* inverse, Stream stream);
void norm_prelu_backward(const Dense& dense, const BatchNorm& norm, void* g, const void* h,
                         const void* inverse, const void* slope, void* gh, void* g_scale,
                         void* g_shift, void* g_slope, void* g_table, Stream stream);

// See ops/waves.h, for float32 and float64: rows of `columns` numbers, each with `waves` waves.
struct Waves {
  Type type;
  int64_t rows, columns, waves;
  const void* frequencies;  // [waves]
};
void waves(const Waves& waves, const void* x, void* y, Stream stream);
void waves_backward(const Waves& waves, const void* gy, const void* y, void* gx, Stream stream);

// See ops/row_sums.h, for float32 and float64: sums over a row's columns, which lie side by side,
// of what is made of a, b and c. Any but b may be null.
struct RowMatrix {
  const void* values;
  int64_t row;  // from one row to the next
};
struct RowVector {  // one number a row
  const void* values;
  int64_t stride;
};
struct RowSums {
  Type type;
  RowSumKind kind;
  int64_t rows, columns;
  RowMatrix a, b, c;
  RowVector scale, weight, added;
};
void row_sum(const RowSums& sums, void* out, Stream stream);
// Gradients of b and c, where gc is not null, given those of the sums.
void row_sum_backward(const RowSums& sums, const RowVector& g, void* gb, void* gc, Stream stream);

// Tensors of one type copied end to end into `out`, in its type, or added to what is there.
struct Piece {
  const void* from;
  int64_t count;
};
void end_to_end(Type from, const Piece* pieces, int64_t count, Type to, void* out, bool add,
                Stream stream);
// The sum of each, [count], for float32 and float64.
void sums_of_pieces(Type type, const Piece* pieces, int64_t count, void* out, Stream stream);

struct Adam {
  Type type;  // float32 or float64
  int64_t count;
  double beta1, beta2, eps, average_decay;
  const void* dials;  // [2]: rate, correction
};
void adam(const Adam& constants, void* p, const void* g, void* m, void* v, void* average,
          Stream stream);

}  // namespace ddaebm::ops::cuda
