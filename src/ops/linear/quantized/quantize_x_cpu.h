// Activations rounded to 16-bit integers for products with quantized weights.
#pragma once

#include <cstdint>

namespace litecache::ops::cpu {

// Values that share a scale of x, and that the kernels process in one step: a block of 256, or 8
// blocks of 32.
inline constexpr int64_t kSliceValues = 256;
// Values of a unit: levels are stored unit by unit, the 16 of even columns and then the 16 of odd
// ones, because that is what a register of the weights' bytes gives when it is widened.
inline constexpr int64_t kUnitValues = 32;
inline constexpr int64_t kSliceUnits = kSliceValues / kUnitValues;

// The largest magnitude of a level. Up to it, 32 products with the largest integers of weights
// (4096) add up in 32 bits.
inline constexpr int kMostX = 16383;

// What belongs to a slice's levels.
struct SliceFactors {
  float scale = 0;
  float sums[kSliceUnits] = {};        // scale * the sum of 32 columns' levels
  float halves[2 * kSliceUnits] = {};  // the same of 16 columns
};

// Rounds up to 256 values of x, a multiple of 32, to level * scale: the largest magnitude is level
// kMostX or -kMostX, the others are the nearest, ties to even. Magnitudes below 1e-30 count as 0.
// If a value is not finite, the scale and the sums are NaN, and the levels 0. Sums of units beyond
// n are not written.
void QuantizeX(const float* x, int64_t n, int16_t* levels, SliceFactors* factors);

}  // namespace litecache::ops::cpu
