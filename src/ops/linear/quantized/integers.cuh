// The integers of packed blocks (packed_layout.h) as bf16 numbers, two at a time, from the words
// that a lane has of a chunk.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "ops/linear/quantized/packed_layout.h"

namespace litecache::ops::cuda::quantized {

// Two bf16 numbers in a word.
__device__ inline __nv_bfloat162 AsPair(uint32_t word) {
  return *reinterpret_cast<const __nv_bfloat162*>(&word);
}
__device__ inline uint32_t AsWord(__nv_bfloat162 pair) {
  return *reinterpret_cast<const uint32_t*>(&pair);
}

// 128 in bf16, whose last bit is then worth 1.
inline constexpr uint32_t k128 = 0x43004300;

// (word & kMask) | kBits in one instruction. The compiler would take two, because an instruction
// has room for one constant.
template <uint32_t kMask, uint32_t kBits>
__device__ inline uint32_t MaskAndSet(uint32_t word) {
#ifdef __CUDA_ARCH__
  uint32_t result;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(result) : "r"(word), "n"(kMask), "n"(kBits));
  return result;
#else
  return (word & kMask) | kBits;
#endif
}

// A plane's word with the bits of columns 4q and 4q + 1 (odd = 0), or of the two after them, moved
// to bit `to` of 16 each. words: from the first step on; upper: of row g + 8.
template <int kPlaneBits>
__device__ inline uint32_t Moved(const uint32_t* words, int step, int half, int upper, int odd,
                                 int to) {
  const uint32_t word = words[step / (4 / kPlaneBits) * 2 + upper];
  const int from = 8 * odd + PackedBitOf(kPlaneBits, step, half);
  return from >= to ? word >> (from - to) : word << (to - from);
}

// 128 + two integers of up to 6 bits. first, second: words of the planes.
template <PackedLayout kPacked>
__device__ __forceinline__ uint32_t RaisedIntegers(const uint32_t* first, const uint32_t* second,
                                                   int step, int half, int upper, int odd) {
  constexpr int kBits = kPacked.bits, kHighBits = kPacked.high_bits;
  constexpr uint32_t kMask = ((1u << kBits) - 1) * 0x00010001u;
  uint32_t pair = MaskAndSet<kMask, k128>(Moved<kBits>(first, step, half, upper, odd, 0));
  if constexpr (kHighBits > 0) {
    constexpr uint32_t kHighMask = (((1u << kHighBits) - 1) * 0x00010001u) << kBits;
    pair |= Moved<kHighBits>(second, step, half, upper, odd, kBits) & kHighMask;
  }
  return pair;
}

// Two signed integers of 8 bits.
__device__ __forceinline__ uint32_t SignedIntegers(const uint32_t* first, int step, int half,
                                                   int upper, int odd) {
  // 128 + the lower seven bits, minus 128 or, with the sign bit, 256; exact.
  const uint32_t word = first[step * 4 + upper * 2 + half] >> (8 * odd);
  return AsWord(__hsub2(AsPair(MaskAndSet<0x007f007f, k128>(word)),
                        AsPair(MaskAndSet<0x00800080, k128>(word))));
}

// Two numbers that DoubledFp4 codes. A code's bits are those of a bf16 number that is 2^127 times
// smaller, which subnormal ones are, too.
__device__ __forceinline__ uint32_t DoubledFp4s(const uint32_t* first, int step, int half,
                                                int upper, int odd) {
  const uint32_t signs = Moved<4>(first, step, half, upper, odd, 12) & 0x80008000u;
  const uint32_t pair = (Moved<4>(first, step, half, upper, odd, 6) & 0x01c001c0u) | signs;
  return AsWord(__hmul2(AsPair(pair), AsPair(0x7f007f00u)));
}

// What integers with 128 added have more than the layout's; subtracting it is exact.
template <PackedLayout kPacked>
inline constexpr uint32_t kRaisedBy = k128 + kPacked.offset * 0x00010001u;

}  // namespace litecache::ops::cuda::quantized
