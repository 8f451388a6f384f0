// Converts 8-bit codes to bf16, two at a time, exactly.
#pragma once

#include <cstdint>

#include "ops/common/row_format.h"

namespace litecache::ops::cuda::split {

// Selects bytes of two registers by the digits of `selector`; a digit d beyond 7 selects the sign
// of byte d - 8, repeated eight times.
template <uint32_t kSelector>
__device__ inline uint32_t PermuteBytes(uint32_t a) {
  uint32_t bytes;
  asm("prmt.b32 %0, %1, 0, %2;" : "=r"(bytes) : "r"(a), "n"(kSelector));
  return bytes;
}

// Codes kFirst and kSecond of four as bf16 in the two halves of a register: their values times
// kUnit.
template <RowEncoding kEncoding>
struct CodePairs;
template <>
struct CodePairs<RowEncoding::kFp8> {
  static constexpr float kUnit = 0x1p-120f;
  // With exponent and mantissa moved to bf16's bits, the result is exactly the value times 2^-120;
  // subnormal codes become subnormal bf16 numbers.
  template <int kFirst, int kSecond>
  __device__ static uint32_t Expand(uint32_t codes) {
    constexpr uint32_t kSelector = kFirst | (8 + kFirst) << 4 | kSecond << 8 | (8 + kSecond) << 12;
    return PermuteBytes<kSelector>(codes) << 4 & 0x87f087f0u;
  }
};
template <>
struct CodePairs<RowEncoding::kInt8> {
  static constexpr float kUnit = 1;
  // 128 plus the lower seven bits, minus 128 or, for a negative code, 256.
  template <int kFirst, int kSecond>
  __device__ static uint32_t Expand(uint32_t codes) {
    constexpr uint32_t kSelector = kFirst | 4 << 4 | kSecond << 8 | 4 << 12;
    const uint32_t bytes = PermuteBytes<kSelector>(codes);
    const uint32_t low = (bytes & 0x007f007fu) | 0x43004300u;
    const uint32_t less = (bytes & 0x00800080u) | 0xc300c300u;
    uint32_t values;  // a sum alone is an instruction only from sm_90 on
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(values) : "r"(low), "r"(0x3f803f80u), "r"(less));
    return values;
  }
};

}  // namespace litecache::ops::cuda::split
