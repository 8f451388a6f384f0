// Converts values to 8-bit codes, with the arithmetic of common/convert_rows_cpu.cc.
#pragma once

#include <cstdint>

#include "ops/common/row_format.h"

namespace litecache::ops::cuda {

// The E4M3 code of a value, to nearest even, saturating.
__device__ inline uint8_t EncodeFp8(float value) {
  const uint32_t sign = (__float_as_uint(value) & 0x80000000u) >> 24;
  const float magnitude = fminf(fabsf(value), 448.0f);
  const uint32_t u = __float_as_uint(magnitude);
  uint32_t code;
  if (magnitude < 0x1p-6f) {
    // The last bit of 2^14 is worth 2^-9, the step of the subnormals.
    code = __float_as_uint(__fadd_rn(magnitude, 0x1p14f)) - 0x46800000u;
  } else {
    code = ((u + (((u >> 20) & 1) + 0x7ffff)) >> 20) - (120u << 3);
  }
  return static_cast<uint8_t>(code | sign);
}

__device__ inline uint8_t EncodeInt8(float value) {
  const float clamped = fmaxf(-127.0f, fminf(value, 127.0f));
  return static_cast<uint8_t>(static_cast<int8_t>(__float2int_rn(clamped)));
}

// The code of a value in a part with this scale.
__device__ inline uint8_t EncodeCode(RowEncoding to, float value, float scale) {
  if (!(scale > 0)) return 0;
  // A division, because the reciprocal of the smallest scales is infinite.
  const float exact = __fdiv_rn(value, scale);
  return to == RowEncoding::kFp8 ? EncodeFp8(exact) : EncodeInt8(exact);
}

// The scale of a part of d values, element(0 .. d - 1), in fp8 or int8, computed by a warp.
// Infinities count as the largest float; a NaN makes the scale NaN.
template <class Element>
__device__ float PartScale(RowEncoding to, int d, const Element& element) {
  constexpr float kLargestFloat = 3.402823466e38f;
  const float largest = to == RowEncoding::kFp8 ? 448.0f : 127.0f;
  float highest = 0;
  bool nan = false;
  for (int i = threadIdx.x % 32; i < d; i += 32) {
    const float value = element(i);
    nan |= isnan(value);
    highest = fmaxf(highest, fabsf(value));
  }
  for (int step = 16; step > 0; step /= 2) {
    highest = fmaxf(highest, __shfl_xor_sync(0xffffffffu, highest, step));
  }
  if (__any_sync(0xffffffffu, nan)) return __uint_as_float(0x7fc00000u);
  return __fdiv_rn(fminf(highest, kLargestFloat), largest);
}

}  // namespace litecache::ops::cuda
