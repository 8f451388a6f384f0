// The bytes of packed blocks (packed_blocks.h), for the host code that writes them and the kernels
// that read them.
//
// A matrix is a sequence of tiles of 16 rows, and a tile a sequence of chunks of 256 columns; what
// lies beyond the matrix has zero scales. A chunk holds its values' integers in one or two planes
// of bits, then its scales.
//
// The integers lie as tensor cores multiply them (mma.m16n8k16 with the weights as its first
// operand): lane 4g + q of a warp needs, of rows g and g + 8, four values of each 16. Products do
// not depend on the order of the columns, so a lane takes four neighbours, columns 4q to 4q + 3.
// Two 16s are a step, of which a lane has one word of 4-bit values for each of its rows: a byte has
// a column of the first 16 in its low half, and of the second in its high half. Bytes 0 and 2,
// which one mask leaves of a word, are neighbouring columns: the order is 4q, 4q + 2, 4q + 1, 4q
// + 3. Words of fewer bits have the values of more steps in each byte; of 8-bit values, there is a
// word for each 16. A lane's words are in groups of 16 bytes, one for each lane, so that a warp
// loads 512 contiguous bytes at a time.
#pragma once

#include <cstdint>
#include <cstring>
#include <string_view>

#include "base/dtype.h"
#include "ops/common/host_device.h"

namespace litecache::ops {

inline constexpr int kChunkColumns = 256;
inline constexpr int kChunkSteps = 8;
inline constexpr int kPlaneBytes = 16 * kChunkColumns / 8;  // of one bit of each value

struct PackedLayout {
  int bits;                 // of the first plane: 2, 4 or 8 (signed)
  int high_bits;            // of the second: 0, 1 or 2
  int offset;               // subtracted from the integers
  int group;                // columns with a scale: 16 or 32
  bool super;               // scales are an f16 of the row's 256 columns times 8-bit factors
  bool minimum = false;     // a group has a term to add as well (super: to subtract)
  bool is_signed = false;   // the 8-bit factors
  bool bf16_scale = false;  // otherwise f16
  bool fp4 = false;         // the first plane has DoubledFp4's codes instead of integers

  // Scales are in records for two groups: their two scales or factors, then their two minima.
  LC_HOST_DEVICE constexpr int Pairs() const { return kChunkColumns / 2 / group; }
  LC_HOST_DEVICE constexpr int RecordBytes() const { return (super ? 2 : 4) * (minimum ? 2 : 1); }
  LC_HOST_DEVICE constexpr int HighAt() const { return bits * kPlaneBytes; }
  LC_HOST_DEVICE constexpr int RecordsAt() const { return HighAt() + high_bits * kPlaneBytes; }
  // [16 rows]: the f16 scale and, if there is one, minimum that the factors multiply.
  LC_HOST_DEVICE constexpr int ScalesAt() const {
    return RecordsAt() + 16 * Pairs() * RecordBytes();
  }
  LC_HOST_DEVICE constexpr int ScaleBytes() const { return minimum ? 4 : 2; }
  LC_HOST_DEVICE constexpr int Bytes() const {
    return ScalesAt() + (super ? 16 * ScaleBytes() : 0);
  }
};

// Formats that differ only in how a block's integers are stored share a layout.
inline constexpr PackedLayout kPackedLayouts[] = {
    {.bits = 4, .high_bits = 0, .offset = 8, .group = 32, .super = false},
    {.bits = 4, .high_bits = 0, .offset = 0, .group = 32, .super = false, .minimum = true},
    {.bits = 4, .high_bits = 1, .offset = 16, .group = 32, .super = false},
    {.bits = 4, .high_bits = 1, .offset = 0, .group = 32, .super = false, .minimum = true},
    {.bits = 8, .high_bits = 0, .offset = 0, .group = 32, .super = false},
    {.bits = 4, .group = 32, .super = false, .bf16_scale = true, .fp4 = true},
    {.bits = 2, .high_bits = 0, .offset = 0, .group = 16, .super = true, .minimum = true},
    {.bits = 2, .high_bits = 1, .offset = 4, .group = 16, .super = true, .is_signed = true},
    {.bits = 4, .high_bits = 0, .offset = 0, .group = 32, .super = true, .minimum = true},
    {.bits = 4, .high_bits = 1, .offset = 0, .group = 32, .super = true, .minimum = true},
    {.bits = 4, .high_bits = 2, .offset = 32, .group = 16, .super = true, .is_signed = true},
    {.bits = 8, .high_bits = 0, .offset = 0, .group = 32, .super = true, .is_signed = true},
};
inline constexpr int kPackedLayoutCount = 12;

// A format's index in kPackedLayouts; -1: it is not packed.
constexpr int PackedLayoutOf(std::string_view format) {
  constexpr std::string_view kNames[] = {"Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "MXFP4",
                                         "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS"};
  for (int i = 0; i < kPackedLayoutCount; ++i) {
    if (kNames[i] == format) return i;
  }
  return format == "IQ4_NL" ? PackedLayoutOf("Q8_0") : -1;
}

constexpr int64_t PackedChunks(int64_t cols) { return (cols + kChunkColumns - 1) / kChunkColumns; }

// Where a plane's word is in a chunk: of `row` and lane part `q`, for `step` or, of 8-bit values,
// for one 16 (`half`) of it.
LC_HOST_DEVICE constexpr int PackedWordAt(int bits, int row, int step, int q, int half) {
  const int word = bits == 8 ? step * 4 + row / 8 * 2 + half : step / (4 / bits) * 2 + row / 8;
  return word / 4 * 512 + (row % 8 * 4 + q) * 16 + word % 4 * 4;
}

// The byte of a word that has column 4q + i, and the column that byte i has.
LC_HOST_DEVICE constexpr int PackedByteOf(int i) { return i % 2 * 2 + i / 2; }

// The first bit of a value in its byte of that word.
LC_HOST_DEVICE constexpr int PackedBitOf(int bits, int step, int half) {
  return bits == 8 ? 0 : (step % (4 / bits) * 2 + half) * bits;
}

namespace packed {

template <typename T>
LC_HOST_DEVICE T ReadAs(const uint8_t* from) {
#ifdef __CUDA_ARCH__
  return *reinterpret_cast<const T*>(from);
#else
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
#endif
}

LC_HOST_DEVICE float FromHalf(uint16_t bits) {
#ifdef __CUDA_ARCH__
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
#else
  f16 half;
  half.bits = bits;
  return static_cast<float>(half);
#endif
}

LC_HOST_DEVICE float FromBf16(uint16_t bits) {
#ifdef __CUDA_ARCH__
  return __uint_as_float(static_cast<uint32_t>(bits) << 16);
#else
  bf16 value;
  value.bits = bits;
  return static_cast<float>(value);
#endif
}

// Rounded on their own on a GPU, too, where the compiler would fuse them.
LC_HOST_DEVICE float Times(float a, float b) {
#ifdef __CUDA_ARCH__
  return __fmul_rn(a, b);
#else
  return a * b;
#endif
}
LC_HOST_DEVICE float Plus(float a, float b) {
#ifdef __CUDA_ARCH__
  return __fadd_rn(a, b);
#else
  return a + b;
#endif
}

}  // namespace packed

// Twice the number of a sign, two bits of exponent and one of mantissa: 0, 1, 2, 3, 4, 6, 8, 12.
LC_HOST_DEVICE constexpr int DoubledFp4(int code) {
  const int low = code & 3, high = code >> 2 & 1, exponent = code >> 1 & 3;
  const int magnitude = high == 0 ? low : (2 + (code & 1)) << (exponent - 1);
  return (code & 8) != 0 ? -magnitude : magnitude;
}

// value = scale * (integer - offset) + minimum
struct PackedScale {
  float scale = 0, minimum = 0;
};

LC_HOST_DEVICE PackedScale ReadPackedScale(const PackedLayout& l, const uint8_t* chunk, int row,
                                           int group) {
  const uint8_t* const record =
      chunk + l.RecordsAt() + (row * l.Pairs() + group / 2) * l.RecordBytes();
  PackedScale result;
  if (!l.super) {
    const uint8_t* const at = record + group % 2 * 2;
    const auto bits = packed::ReadAs<uint16_t>(at);
    result.scale = l.bf16_scale ? packed::FromBf16(bits) : packed::FromHalf(bits);
    if (l.minimum) result.minimum = packed::FromHalf(packed::ReadAs<uint16_t>(at + 4));
    return result;
  }
  const uint8_t* const at = record + group % 2;
  const uint8_t* const scales = chunk + l.ScalesAt() + row * l.ScaleBytes();
  const float factor =
      l.is_signed ? static_cast<float>(static_cast<int8_t>(*at)) : static_cast<float>(*at);
  result.scale = packed::Times(packed::FromHalf(packed::ReadAs<uint16_t>(scales)), factor);
  if (l.minimum) {
    const float minimum = packed::FromHalf(packed::ReadAs<uint16_t>(scales + 2));
    result.minimum = -packed::Times(minimum, static_cast<float>(at[2]));
  }
  return result;
}

// The values of columns 4q to 4q + 3 of both 16s of a step, bit for bit those of the format.
LC_HOST_DEVICE void ReadPackedValues(const PackedLayout& l, const uint8_t* chunk, int row, int step,
                                     int q, float (&values)[8]) {
  for (int half = 0; half < 2; ++half) {
    const PackedScale scale =
        ReadPackedScale(l, chunk, row, l.group == 32 ? step : step * 2 + half);
    const auto word = packed::ReadAs<uint32_t>(chunk + PackedWordAt(l.bits, row, step, q, half));
    const uint32_t high =
        l.high_bits == 0 ? 0
                         : packed::ReadAs<uint32_t>(chunk + l.HighAt() +
                                                    PackedWordAt(l.high_bits, row, step, q, half));
    for (int i = 0; i < 4; ++i) {
      int value = static_cast<int>(word >> (8 * PackedByteOf(i) + PackedBitOf(l.bits, step, half)));
      value = l.bits == 8 ? static_cast<int8_t>(value) : value & ((1 << l.bits) - 1);
      if (l.high_bits > 0) {
        const auto more = high >> (8 * PackedByteOf(i) + PackedBitOf(l.high_bits, step, half));
        value |= static_cast<int>(more & ((1u << l.high_bits) - 1)) << l.bits;
      }
      if (l.fp4) value = DoubledFp4(value);
      const float product = packed::Times(scale.scale, static_cast<float>(value - l.offset));
      values[half * 4 + i] = l.minimum ? packed::Plus(product, scale.minimum) : product;
    }
  }
}

}  // namespace litecache::ops
