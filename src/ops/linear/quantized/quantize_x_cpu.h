// Activations rounded to 8 bits for products with quantized weights.
#pragma once

#include <cstdint>

namespace litecache::ops::cpu {

// Rounds n values of x, a multiple of 32, to level * scale: of every 32 values the largest
// magnitude is level 127 or -127, the others are the nearest, ties to even. sums: scale * the sum
// of 32 levels; halves: the same of 16. Magnitudes below 1e-30 count as 0. If one of 32 values is
// not finite, their scale and sums are NaN, and their levels 0.
void QuantizeX(const float* x, int64_t n, int8_t* levels, float* scales, float* sums,
               float* halves);

}  // namespace litecache::ops::cpu
