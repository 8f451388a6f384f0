// Packed blocks (packed_layout.h) as tensor cores' operands in bf16: the values of UnpackBlocks,
// bit for bit but for the sign of zeros.
//
// An integer n of up to 6 bits becomes the f32 number 128 + n, and an 8-bit one 2^15 + 128 + n, by
// moving its byte into place: one instruction for each value, where a conversion takes the time of
// four. Without a minimum, the next instruction multiplies by the scale and takes the rest away
// again, which is exact where the rest times the scale is an f32 number. Otherwise the rest is
// subtracted first.
#pragma once

#include <algorithm>

#include "ops/common/tensor_core.cuh"
#include "ops/linear/quantized_scales.cuh"

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
      const uint32_t bytes = Bytes(step, half, upper);
      float values[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) values[i] = Value(bytes, i, scale);
      a[upper] = PackBf16(values[0], values[1]);
      a[2 + upper] = PackBf16(values[2], values[3]);
    }
  }

 private:
  static constexpr bool kWide = kPacked.bits == 8;
  static constexpr int kRaisedBy = kWide ? 32768 + 128 : 128;
  static constexpr int kRest = kRaisedBy + kPacked.offset;
  static constexpr int kRecords = kSteps / 2 * (32 / kPacked.group);
  static constexpr int kRecordWords = std::max(kRecords * kPacked.RecordBytes() / 4, 1);

  // Bits of an f32 that kRest times a scale needs. bf16 scales may be as large as any number.
  LC_HOST_DEVICE static constexpr bool RestIsExact() {
    int bits = kPacked.super ? 11 + 7 : 11;
    int odd = kRest;
    while (odd % 2 == 0) odd /= 2;
    for (; odd > 0; odd /= 2) ++bits;
    return bits <= 24 && !kPacked.bf16_scale && !kPacked.minimum;
  }

  // Of one bit, two steps have half a byte of each word, and both parts' words are loaded.
  LC_HOST_DEVICE static constexpr int PlaneWords(int bits) {
    return bits * kSteps < 4 ? 2 : bits * kSteps / 2;
  }

  template <int kBits>
  __device__ static void LoadPlane(const uint8_t* plane, int part, int lane,
                                   uint32_t (&to)[PlaneWords(kBits)]) {
    constexpr int kWords = PlaneWords(kBits);
    constexpr bool kHalfWords = kBits * kSteps / 2 < 2;
    const int first = (kHalfWords ? part / 2 : part) * kWords;
    const uint8_t* const from = plane + first / 4 * 512 + lane * 16 + first % 4 * 4;
#pragma unroll
    for (int i = 0; i < kWords; i += 4) LoadWords<kWords == 2 ? 2 : 4>(from + i * 128, to + i);
    if constexpr (kHalfWords) {
#pragma unroll
      for (uint32_t& word : to) word >>= part % 2 * 4;
    }
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

  // A plane's word with a value's bits of each byte moved to bit `to`, and others around them.
  template <int kBits>
  __device__ static uint32_t Moved(const uint32_t* words, int step, int half, int upper, int to) {
    const uint32_t word = words[step / (4 / kBits) * 2 + upper];
    const int from = PackedBitOf(kBits, step, half);
    return from >= to ? word >> (from - to) : word << (to - from);
  }

  // A byte for each of four columns: the integers, or with 128 added if they have 8 bits.
  __device__ __forceinline__ uint32_t Bytes(int step, int half, int upper) const {
    if constexpr (kWide) {
      return first_[step * 4 + upper * 2 + half] ^ 0x80808080u;
    } else {
      constexpr uint32_t kMask = ((1u << kPacked.bits) - 1) * 0x01010101u;
      uint32_t bytes = Moved<kPacked.bits>(first_, step, half, upper, 0) & kMask;
      if constexpr (kPacked.high_bits > 0) {
        constexpr uint32_t kHighMask = ((1u << kPacked.high_bits) - 1) * 0x01010101u;
        bytes |= Moved<kPacked.high_bits>(second_, step, half, upper, kPacked.bits) &
                 (kHighMask << kPacked.bits);
      }
      return bytes;
    }
  }

  __device__ static float Value(uint32_t bytes, int i, const PackedScale& scale) {
    const auto byte = static_cast<uint32_t>(i);
    const float raised =
        __uint_as_float(kWide ? __byte_perm(bytes, 0x47000000u, 0x7404u + (byte << 4))
                              : __byte_perm(bytes, 0x43000000u, 0x7044u + (byte << 8)));
    if constexpr (RestIsExact()) {
      return fmaf(scale.scale, raised, -static_cast<float>(kRest) * scale.scale);
    }
    const float integer = packed::Plus(raised, -static_cast<float>(kRest));
    // With a minimum, products of scales and integers are exact (at most 22 bits).
    if constexpr (kPacked.minimum) return fmaf(scale.scale, integer, scale.minimum);
    return packed::Times(scale.scale, integer);
  }

  uint32_t first_[PlaneWords(kPacked.bits)];
  uint32_t second_[PlaneWords(kPacked.high_bits)];
  uint32_t records_[2][kRecordWords];  // of rows g and g + 8
  uint32_t scales_[2];
};

}  // namespace litecache::ops::cuda::quantized
