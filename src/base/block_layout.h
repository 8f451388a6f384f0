// The bytes of ggml's blocks: a struct for each format whose values are read, which also says what
// the values are.
#pragma once

#include <bit>
#include <cstdint>

#include "base/dtype.h"

namespace litecache::blocks {

using Bytes2 = uint8_t[2];

inline float Half(const Bytes2& bytes) {
  f16 half;
  half.bits = static_cast<uint16_t>(bytes[0] | bytes[1] << 8);
  return static_cast<float>(half);
}

inline int Low(uint8_t byte) { return byte & 15; }
inline int High(uint8_t byte) { return byte >> 4; }
inline int Bit(const uint8_t* bits, int i) { return bits[i / 8] >> (i % 8) & 1; }

// A block of 32 has its first 16 values in the low halves of its bytes, the others in the high
// ones.
inline constexpr int kSmall = 32;
// A block of 256 ("K") has a scale for each group of 16 or 32 of its values.
inline constexpr int kLarge = 256;

// Every block is a struct of bytes, so that it may be anywhere in a file. d: the block's scale, m:
// its minimum, q: the values' low bits, h: their high bits.

struct Q4_0 {
  static constexpr int kValues = kSmall;
  Bytes2 d;
  uint8_t q[16];

  void ToFloat(float* out) const {
    const float scale = Half(d);
    for (int i = 0; i < 16; ++i) {
      out[i] = scale * static_cast<float>(Low(q[i]) - 8);
      out[i + 16] = scale * static_cast<float>(High(q[i]) - 8);
    }
  }
};

struct Q4_1 {
  static constexpr int kValues = kSmall;
  Bytes2 d, m;
  uint8_t q[16];

  void ToFloat(float* out) const {
    const float scale = Half(d), minimum = Half(m);
    for (int i = 0; i < 16; ++i) {
      out[i] = scale * static_cast<float>(Low(q[i])) + minimum;
      out[i + 16] = scale * static_cast<float>(High(q[i])) + minimum;
    }
  }
};

struct Q5_0 {
  static constexpr int kValues = kSmall;
  Bytes2 d;
  uint8_t h[4];
  uint8_t q[16];

  void ToFloat(float* out) const {
    const float scale = Half(d);
    for (int i = 0; i < 16; ++i) {
      out[i] = scale * static_cast<float>((Low(q[i]) | Bit(h, i) << 4) - 16);
      out[i + 16] = scale * static_cast<float>((High(q[i]) | Bit(h, i + 16) << 4) - 16);
    }
  }
};

struct Q5_1 {
  static constexpr int kValues = kSmall;
  Bytes2 d, m;
  uint8_t h[4];
  uint8_t q[16];

  void ToFloat(float* out) const {
    const float scale = Half(d), minimum = Half(m);
    for (int i = 0; i < 16; ++i) {
      out[i] = scale * static_cast<float>(Low(q[i]) | Bit(h, i) << 4) + minimum;
      out[i + 16] = scale * static_cast<float>(High(q[i]) | Bit(h, i + 16) << 4) + minimum;
    }
  }
};

struct Q8_0 {
  static constexpr int kValues = kSmall;
  Bytes2 d;
  int8_t q[32];

  void ToFloat(float* out) const {
    const float scale = Half(d);
    for (int i = 0; i < 32; ++i) out[i] = scale * static_cast<float>(q[i]);
  }
};

struct Q2_K {
  static constexpr int kValues = kLarge;
  uint8_t
      scales[16];  // a group of 16 values: the scale in the low half, the minimum in the high one
  uint8_t q[64];   // value i of 128 in bits 2 * (i / 32) of byte i % 32
  Bytes2 d, m;

  void ToFloat(float* out) const {
    const float scale = Half(d), minimum = Half(m);
    for (int i = 0; i < kLarge; ++i) {
      const uint8_t group = scales[i / 16];
      const int value = q[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
      out[i] = scale * static_cast<float>(Low(group)) * static_cast<float>(value) -
               minimum * static_cast<float>(High(group));
    }
  }
};

struct Q3_K {
  static constexpr int kValues = kLarge;
  uint8_t h[32];  // value i in bit i / 32 of byte i % 32; 0 stands for -4
  uint8_t q[64];  // as in Q2_K
  uint8_t
      scales[12];  // 16 of 6 bits: the low four of groups g and g + 8 in byte g, then the others
  Bytes2 d;

  void ToFloat(float* out) const {
    const float scale = Half(d);
    float group[16];
    for (int g = 0; g < 16; ++g) {
      const int low = g < 8 ? Low(scales[g]) : High(scales[g - 8]);
      const int high = scales[8 + g % 4] >> (g / 4 * 2) & 3;
      group[g] = scale * static_cast<float>((low | high << 4) - 32);
    }
    for (int i = 0; i < kLarge; ++i) {
      const int value = q[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
      const int offset = (h[i % 32] >> (i / 32) & 1) != 0 ? 0 : 4;
      out[i] = group[i / 16] * static_cast<float>(value - offset);
    }
  }
};

// Scales and minima of the 8 groups of 32 values in Q4_K and Q5_K, 6 bits each: of the first four
// groups in one byte each, of the others in the bits that those leave and in four bytes more.
struct GroupScales {
  uint8_t bytes[12];

  int Scale(int g) const {
    return g < 4 ? bytes[g] & 63 : Low(bytes[g + 4]) | (bytes[g - 4] >> 2 & 0x30);
  }
  int Minimum(int g) const {
    return g < 4 ? bytes[g + 4] & 63 : High(bytes[g + 4]) | (bytes[g] >> 2 & 0x30);
  }
};

// Group g of 8 in 128 bytes: the low halves of 32 bytes, or the high ones.
inline int GroupNibble(const uint8_t* q, int g, int i) {
  return q[g / 2 * 32 + i] >> (g % 2 * 4) & 15;
}

struct Q4_K {
  static constexpr int kValues = kLarge;
  Bytes2 d, m;
  GroupScales scales;
  uint8_t q[128];

  void ToFloat(float* out) const {
    for (int g = 0; g < 8; ++g) {
      const float scale = Half(d) * static_cast<float>(scales.Scale(g));
      const float minimum = Half(m) * static_cast<float>(scales.Minimum(g));
      for (int i = 0; i < 32; ++i) {
        out[g * 32 + i] = scale * static_cast<float>(GroupNibble(q, g, i)) - minimum;
      }
    }
  }
};

struct Q5_K {
  static constexpr int kValues = kLarge;
  Bytes2 d, m;
  GroupScales scales;
  uint8_t h[32];  // value i of group g in bit g of byte i
  uint8_t q[128];

  void ToFloat(float* out) const {
    for (int g = 0; g < 8; ++g) {
      const float scale = Half(d) * static_cast<float>(scales.Scale(g));
      const float minimum = Half(m) * static_cast<float>(scales.Minimum(g));
      for (int i = 0; i < 32; ++i) {
        const int value = GroupNibble(q, g, i) | (h[i] >> g & 1) << 4;
        out[g * 32 + i] = scale * static_cast<float>(value) - minimum;
      }
    }
  }
};

struct Q6_K {
  static constexpr int kValues = kLarge;
  uint8_t q[128];     // value i of 128 in half i / 64 of byte i % 64
  uint8_t h[64];      // value i of 128 in bits 2 * (i / 32) of byte i % 32
  int8_t scales[16];  // of groups of 16 values
  Bytes2 d;

  void ToFloat(float* out) const {
    const float scale = Half(d);
    for (int i = 0; i < kLarge; ++i) {
      const int half = i / 128, at = i % 128;
      const int low = q[half * 64 + at % 64] >> (at / 64 * 4) & 15;
      const int high = h[half * 32 + at % 32] >> (at / 32 * 2) & 3;
      const int8_t group = scales[i / 16];
      out[i] = scale * static_cast<float>(group) * static_cast<float>((low | high << 4) - 32);
    }
  }
};

// The 16 values of IQ4_NL and IQ4_XS, denser around zero.
inline constexpr int8_t kUneven[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                       1,    13,   25,  38,  53,  69,  89,  113};

struct IQ4_NL {
  static constexpr int kValues = kSmall;
  Bytes2 d;
  uint8_t q[16];

  void ToFloat(float* out) const {
    const float scale = Half(d);
    for (int i = 0; i < 16; ++i) {
      out[i] = scale * static_cast<float>(kUneven[Low(q[i])]);
      out[i + 16] = scale * static_cast<float>(kUneven[High(q[i])]);
    }
  }
};

struct IQ4_XS {
  static constexpr int kValues = kLarge;
  Bytes2 d;
  uint8_t high_scales[2];  // 2 bits a group of 32 values
  uint8_t low_scales[4];   // 4 bits a group
  uint8_t q[128];          // 16 bytes a group, as in IQ4_NL

  void ToFloat(float* out) const {
    for (int g = 0; g < 8; ++g) {
      const int low = low_scales[g / 2] >> (g % 2 * 4) & 15;
      const int high = high_scales[g / 4] >> (g % 4 * 2) & 3;
      const float scale = Half(d) * static_cast<float>((low | high << 4) - 32);
      for (int i = 0; i < 16; ++i) {
        out[g * 32 + i] = scale * static_cast<float>(kUneven[Low(q[g * 16 + i])]);
        out[g * 32 + i + 16] = scale * static_cast<float>(kUneven[High(q[g * 16 + i])]);
      }
    }
  }
};

// Microscaling's fp4 (E2M1), doubled so that the values are integers; the scale is halved instead.
inline constexpr int8_t kDoubledFp4[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

struct MXFP4 {
  static constexpr int kValues = kSmall;
  uint8_t exponent;  // the scale is 2^(exponent - 127)
  uint8_t q[16];

  void ToFloat(float* out) const {
    const float scale = std::bit_cast<float>(exponent < 2 ? uint32_t{0x00200000} << exponent
                                                          : (uint32_t{exponent} - 1) << 23);
    for (int i = 0; i < 16; ++i) {
      out[i] = scale * static_cast<float>(kDoubledFp4[Low(q[i])]);
      out[i + 16] = scale * static_cast<float>(kDoubledFp4[High(q[i])]);
    }
  }
};

}  // namespace litecache::blocks
