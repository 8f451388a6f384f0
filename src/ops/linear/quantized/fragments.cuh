// Packed blocks (packed_layout.h) as tensor cores' operands in bf16.
//
// Of up to 6 bits: two integers at a time become bf16 numbers, exactly, and are multiplied by their
// scale in bf16, to which a minimum is added before the only rounding. Scales and minima are
// rounded to bf16 before. Integers from 0 up are taken around the middle of their range, and the
// minimum, in f32, with what that changes: a minimum and the largest products are both several
// times the value, and their rounding errors with them (Q4_K's KL to f32: 0.0006). In f32, a value
// takes 4.5 instructions instead of 2.6, and these decide how long products of 9 to 48 rows take.
//
// Of 8 bits: the values of UnpackBlocks, bit for bit but for the sign of zeros. An integer n
// becomes the f32 number 2^15 + 128 + n by moving its byte into place: one instruction for each
// value, where a conversion takes the time of four. The next one multiplies by the scale and takes
// the rest away again, where that is exact; otherwise the rest is subtracted first.
#pragma once

#include <algorithm>

#include "ops/common/tensor_core.cuh"
#include "ops/linear/quantized/integers.cuh"
#include "ops/linear/quantized/scales.cuh"

namespace litecache::ops::cuda::quantized {

// What a lane needs of a tile's chunk for kSteps of its steps.
template <int kLayout, int kSteps>
class Fragments {
 public:
  static constexpr PackedLayout kPacked = kPackedLayouts[kLayout];

  // part: which kSteps of the chunk.
  __device__ __forceinline__ void Load(const uint8_t* chunk, int part, int lane) {
    LoadPlane<kPacked.bits>(chunk, part, lane, first_);
    if constexpr (kPacked.high_bits > 0) {
      LoadPlane<kPacked.high_bits>(chunk + kPacked.HighAt(), part, lane, second_);
    }
    constexpr int kRecordBytes = kPacked.RecordBytes();
#pragma unroll
    for (int upper = 0; upper < 2; ++upper) {
      const int row = lane / 4 + upper * 8;
      const uint8_t* const records =
          chunk + kPacked.RecordsAt() + (row * kPacked.Pairs() + part * kRecords) * kRecordBytes;
      if constexpr (kRecords * kRecordBytes == 2) {
        records_[upper][0] = *reinterpret_cast<const uint16_t*>(records);
      } else {
        LoadWords<kRecordWords>(records, records_[upper]);
      }
      if constexpr (kPacked.super) {
        const uint8_t* const scales = chunk + kPacked.ScalesAt() + row * kPacked.ScaleBytes();
        scales_[upper] = kPacked.minimum ? *reinterpret_cast<const uint32_t*>(scales)
                                         : *reinterpret_cast<const uint16_t*>(scales);
      }
    }
  }

  // The operands for one 16 (`half`) of a step: pairs of columns 4q and 4q + 1 of rows g and g + 8,
  // then of the two columns after them.
  __device__ __forceinline__ void Operands(int step, int half, uint32_t (&a)[4]) const {
#pragma unroll
    for (int upper = 0; upper < 2; ++upper) {
      const int group = kPacked.group == 32 ? step : step * 2 + half;
      const PackedScale scale =
          RowScales<Fragments>(scales_[upper]).Of(Record(upper, group / 2), group % 2);
      if constexpr (kPacked.bits == 8) {
        const uint32_t word = first_[step * 4 + upper * 2 + half] ^ 0x80808080u;
        a[upper] = PackBf16(Value(word, 0, scale), Value(word, 1, scale));
        a[2 + upper] = PackBf16(Value(word, 2, scale), Value(word, 3, scale));
      } else {
#pragma unroll
        for (int odd = 0; odd < 2; ++odd) a[2 * odd + upper] = Pair(step, half, upper, odd, scale);
      }
    }
  }

 private:
  static constexpr int kMiddle = kPacked.minimum ? 1 << (kPacked.bits + kPacked.high_bits - 1) : 0;
  static constexpr int kRecords = kSteps / 2 * (32 / kPacked.group);
  static constexpr int kRecordWords = std::max(kRecords * kPacked.RecordBytes() / 4, 1);

  LC_HOST_DEVICE static constexpr int PlaneWords(int bits) { return bits * kSteps / 2; }

  template <int kBits, int kWords>
  __device__ static void LoadPlane(const uint8_t* plane, int part, int lane,
                                   uint32_t (&to)[kWords]) {
    static_assert(kWords == PlaneWords(kBits));
    const int first = part * kWords;
    const uint8_t* const from = plane + first / 4 * 512 + lane * 16 + first % 4 * 4;
#pragma unroll
    for (int i = 0; i < kWords; i += 4) LoadWords<kWords == 2 ? 2 : 4>(from + i * 128, to + i);
  }

  __device__ __forceinline__ uint2 Record(int upper, int pair) const {
    const uint32_t(&words)[kRecordWords] = records_[upper];
    if constexpr (kPacked.RecordBytes() == 8) {
      return {words[2 * pair], words[2 * pair + 1]};
    } else if constexpr (kPacked.RecordBytes() == 4) {
      return {words[pair], 0};
    } else {
      return {words[pair / 2] >> (pair % 2 * 16), 0};
    }
  }

  // Two integers of up to 6 bits.
  __device__ __forceinline__ __nv_bfloat162 Integers(int step, int half, int upper, int odd) const {
    if constexpr (kPacked.fp4) return AsPair(DoubledFp4s(first_, step, half, upper, odd));
    return __hsub2(AsPair(RaisedIntegers<kPacked>(first_, second_, step, half, upper, odd)),
                   AsPair(kRaisedBy<kPacked> + kMiddle * 0x00010001u));
  }
  // Their values.
  __device__ __forceinline__ uint32_t Pair(int step, int half, int upper, int odd,
                                           const PackedScale& scale) const {
    const __nv_bfloat162 integers = Integers(step, half, upper, odd);
    const __nv_bfloat162 scales = AsPair(PackBf16(scale.scale, scale.scale));
    if constexpr (!kPacked.minimum) return AsWord(__hmul2(integers, scales));
    const float middle = fmaf(kMiddle, scale.scale, scale.minimum);
    return AsWord(__hfma2(integers, scales, AsPair(PackBf16(middle, middle))));
  }

  // A value of 8 bits, to which 128 has been added.
  __device__ static float Value(uint32_t word, int i, const PackedScale& scale) {
    constexpr float kRaised = 32768 + 128;
    const auto byte = static_cast<uint32_t>(PackedByteOf(i));
    const float raised = __uint_as_float(__byte_perm(word, 0x47000000u, 0x7404u + (byte << 4)));
    if constexpr (kRestIsExact) return fmaf(scale.scale, raised, -kRaised * scale.scale);
    return packed::Times(scale.scale, packed::Plus(raised, -kRaised));
  }
  // Whether kRaised, of 9 bits, times a scale is an f32: a factor times an f16, or bf16 scales that
  // may be as large as any number, are not.
  static constexpr bool kRestIsExact = !kPacked.super && !kPacked.bf16_scale;

  uint32_t first_[PlaneWords(kPacked.bits)];
  uint32_t second_[PlaneWords(std::max(kPacked.high_bits, 1))];
  uint32_t records_[2][kRecordWords];  // of rows g and g + 8
  uint32_t scales_[2];
};

}  // namespace litecache::ops::cuda::quantized
