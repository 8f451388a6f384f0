// The soft cap of numbers, for logits and for attention's scores.
#pragma once

#include <cstdint>

namespace litecache::ops::cpu {

// x = cap tanh(x / cap), cap > 0, with an absolute error below 4e-7 cap; infinities become the cap,
// NaN stays NaN.
void SoftCap(float* x, int64_t count, float cap);

}  // namespace litecache::ops::cpu
