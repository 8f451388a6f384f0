// FP8 numbers of the kind E4M3: a sign, 4 bits of exponent (bias 7), 3 of mantissa; no infinities.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

namespace litecache {

inline constexpr float kLargestFp8 = 448;

inline float FromFp8(uint8_t code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  float value = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                              : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
  if (exponent == 15 && mantissa == 7) value = std::numeric_limits<float>::quiet_NaN();
  return code < 128 ? value : -value;
}

// The nearest number, ties to even; the largest for any beyond it. Not for a NaN.
inline uint8_t ToFp8(float value) {
  const float size = std::min(std::abs(value), kLargestFp8);
  int exponent = std::numeric_limits<int>::min() / 2;
  if (size > 0) std::frexp(size, &exponent);  // size < 2^exponent
  // The numbers from 2^(exponent - 1) on are multiples of an eighth of it; below 2^-6, of 2^-9.
  const int unit = std::max(exponent - 4, -9);
  const auto multiple = static_cast<int>(std::nearbyint(std::ldexp(size, -unit)));
  // Those of 8 to 15 have the exponent unit + 10, which 8 adds one to; 16 carries to the next.
  const int code = (unit + 9) * 8 + multiple;
  return static_cast<uint8_t>(std::signbit(value) ? code | 0x80 : code);
}

}  // namespace litecache
