#pragma once

#include <bit>
#include <cmath>

#include "cuda_runtime.h"

struct __nv_bfloat16 {
  uint16_t bits;
};
inline float __bfloat162float(__nv_bfloat16 x) {
  return std::bit_cast<float>(static_cast<uint32_t>(x.bits) << 16U);
}
// Halves to even; what is no number stays none.
inline __nv_bfloat16 __float2bfloat16(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  if (std::isnan(x)) return {0x7fff};
  return {static_cast<uint16_t>((bits + 0x7fffU + (bits >> 16U & 1U)) >> 16U)};
}
