#pragma once

#include <cstdint>

// The GPU kernels, behind plain pointers: no LibTorch here, so that nvcc alone compiles them. Images
// are channels last, [N, H, W, C]; sums are made in float32, or float64 for float64 images.
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
  void* mean;     // [N, G]
  void* inverse;  // [N, G], one over the deviation
};
// Writes y, mean and inverse.
void group_norm_forward(const GroupNorm& norm, void* y, Stream stream);
// The gradients in x, and in scale and shift [N, C].
void group_norm_backward(const GroupNorm& norm, const void* gy, void* gx, void* gscale,
                         void* gshift, Stream stream);
// The gradients of <v, gx> in gy, x, scale and shift.
void group_norm_backward_twice(const GroupNorm& norm, const void* v, const void* gy, void* ggy,
                               void* gx, void* gscale, void* gshift, Stream stream);

// Each output is `gain` times the sum of the (1, 3, 3, 1) / 8 taps along both axes over the input with
// up - 1 zeros between its pixels, `pad` further zeros before it, every down-th place.
struct Fir {
  Type type;
  int64_t images, channels, in_height, in_width, out_height, out_width;
  int up, down, pad;
  double gain;
};
void fir(const Fir& shape, const void* x, void* y, Stream stream);

struct Adam {
  Type type;  // float32 or float64
  int64_t count;
  double beta1, beta2, eps, average_decay;
  const void* dials;  // [2]: rate, correction
};
void adam(const Adam& constants, void* p, const void* g, void* m, void* v, void* average,
          Stream stream);

}  // namespace ddaebm::ops::cuda
