// Scales of packed blocks (packed_layout.h) from the words that a lane has of them.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "ops/linear/quantized/packed_layout.h"

namespace litecache::ops::cuda::quantized {

// kWords words of shared memory, as many at a time as their alignment allows: a multiple of their
// size, up to four.
template <int kWords>
__device__ inline void LoadWords(const uint8_t* from, uint32_t* to) {
  if constexpr (kWords == 1) {
    to[0] = *reinterpret_cast<const uint32_t*>(from);
  } else if constexpr (kWords == 2) {
    const uint2 in = *reinterpret_cast<const uint2*>(from);
    to[0] = in.x, to[1] = in.y;
  } else {
#pragma unroll
    for (int i = 0; i < kWords; i += 4) {
      const uint4 in = *reinterpret_cast<const uint4*>(from + i * 4);
      to[i] = in.x, to[i + 1] = in.y, to[i + 2] = in.z, to[i + 3] = in.w;
    }
  }
}

// What turns a record's bytes into scales: the factors of a row, if there are any. Shape: has
// kPacked. A factor is moved into an f32 number, and what that adds to it is taken away after the
// product, all of which is exact.
template <typename Shape>
struct RowScales {
  static constexpr bool kMinimum = Shape::kPacked.minimum;
  float scale = 0, minimum = 0;              // of factors
  float scale_magic = 0, minimum_magic = 0;  // takes away what ByteOf adds

  __device__ __forceinline__ explicit RowScales(uint32_t bits) {
    if constexpr (!Shape::kPacked.super) return;
    scale = packed::FromHalf(static_cast<uint16_t>(bits));
    scale_magic = -kMagic * scale;
    if constexpr (Shape::kPacked.is_signed) scale_magic = -(kSignedMagic + 128) * scale;
    if constexpr (!kMinimum) return;
    minimum = -packed::FromHalf(static_cast<uint16_t>(bits >> 16));
    minimum_magic = -kMagic * minimum;
  }

  // Scale and minimum of a record's group i, 0 or 1.
  __device__ __forceinline__ PackedScale Of(uint2 record, int i) const {
    PackedScale result;
    if constexpr (Shape::kPacked.bf16_scale) {
      result.scale = __uint_as_float(i == 0 ? record.x << 16 : record.x & 0xffff0000u);
    } else if constexpr (!Shape::kPacked.super) {
      result.scale = packed::FromHalf(static_cast<uint16_t>(record.x >> (16 * i)));
      result.minimum = packed::FromHalf(static_cast<uint16_t>(record.y >> (16 * i)));
    } else if constexpr (Shape::kPacked.is_signed) {
      result.scale = fmaf(scale, SignedByteOf(record.x, i), scale_magic);
    } else {
      result.scale = fmaf(scale, ByteOf(record.x, i), scale_magic);
      if constexpr (kMinimum) {
        result.minimum = fmaf(minimum, ByteOf(record.x, i + 2), minimum_magic);
      }
    }
    return result;
  }
  // The same for integers with 128 added, if there is a minimum to take it from.
  __device__ __forceinline__ PackedScale OfRaised(uint2 record, int i) const {
    PackedScale result = Of(record, i);
    if constexpr (kMinimum) result.minimum = fmaf(-128.0f, result.scale, result.minimum);
    return result;
  }

 private:
  static constexpr float kMagic = 8388608;  // 2^23: an f32's last bit is then worth 1
  // 2^23 + byte i.
  __device__ static float ByteOf(uint32_t word, int i) {
    return __uint_as_float(__byte_perm(word, 0x4b000000u, static_cast<uint32_t>(0x7440 + i)));
  }
  // 2^15 + 128 + byte i, signed. Times an f16, 2^23 + 128 would take more bits than an f32 has.
  static constexpr float kSignedMagic = 32768;
  __device__ static float SignedByteOf(uint32_t word, int i) {
    return __uint_as_float(
        __byte_perm(word ^ 0x8080u, 0x47000000u, static_cast<uint32_t>(0x7404 + 16 * i)));
  }
};

}  // namespace litecache::ops::cuda::quantized
