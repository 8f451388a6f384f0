// Conversions between storage types and f32.
#pragma once

#include <cstdint>

#include "base/dtype.h"

namespace litecache::ops::cpu {

// dst[i] = src[i] as f32; src has `dtype` (f32, f16 or bf16).
void Widen(DType dtype, const void* src, int64_t n, float* dst);

// dst[i] += src[i] as f32.
void WidenAdd(DType dtype, const void* src, int64_t n, float* dst);

// dst[i] = bf16(src[i]), to nearest even.
void NarrowToBf16(const float* src, int64_t n, bf16* dst);

}  // namespace litecache::ops::cpu
