// The scales with which values are quantized: searches for those with the least error.
#pragma once

#include <span>

#include "base/dtype.h"

namespace litecache::quantize {

inline float AsHalf(float value) { return static_cast<float>(f16(value)); }
// 0 for 0.
inline float Inverse(float value) { return value != 0 ? 1 / value : 0; }

// Nearest integer in [low, high], ties to even; low for a NaN. Without a conversion to int, which
// is undefined out of range.
inline float Level(float value, float low, float high) {
  constexpr float kShift = 12582912.0f;  // 1.5 * 2^23: the sum has no bits below 1
  value = value > low ? value : low;
  value = value < high ? value : high;
  return (value + kShift) - kShift;
}

// The value of the largest magnitude.
float Extreme(std::span<const float> x);

// A scale in f16 with which integers in [-low, high] give exactly the values, or 0. high = low or
// low - 1.
float ExactScale(std::span<const float> x, int low, int high);

// The scale in f16 of x = scale * q, q in [-low, low - 1]: an exact one, otherwise the one of the
// least squared error among those that put the extreme value near -low.
float SymmetricScale(std::span<const float> x, int low);

// The squared error of x = scale * q, q in [low, high]. A multiple of 4 values.
float SquaredError(std::span<const float> x, float scale, float low, float high);

struct Affine {
  float scale = 0, minimum = 0;
};

// Scale and minimum in f16 of x = scale * q + minimum, q in [0, highest]: exact ones, otherwise
// those that put the least value at 0 and the largest at `highest`.
Affine AffineScale(std::span<const float> x, int highest);

// A group of at most 32 values of a block of 256, a multiple of 4, and what their errors count.
class Group {
 public:
  explicit Group(std::span<const float> x);

  // The scale of x = scale * q, q in [-low, low - 1], not rounded.
  float Symmetric(int low) const;
  // Those of x = scale * q + minimum, q in [0, highest], minimum <= 0, not rounded.
  Affine Fit(int highest) const;
  // The pair of the least error among the multiples in [0, 63] of d and m next to `fit`.
  struct Multiples {
    int scale = 0, minimum = 0;
  };
  Multiples Round(const Affine& fit, float d, float m, int highest) const;

 private:
  float Error(float scale, float minimum, float highest) const;

  std::span<const float> x_;
  float weights_[32];
};

}  // namespace litecache::quantize
