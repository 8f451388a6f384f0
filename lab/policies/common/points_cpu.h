// Arithmetic on points and centroids.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"
#include "lab/namespaces.h"

namespace litecache::lab::ops::cpu {

// out[i] = x[i] as f32 - center[i]; x of bf16 or f32; center null: 0.
void CenterPoint(DType dtype, const std::byte* x, const float* center, int64_t n, float* out);

// sums[i] += x[i].
void AddPoint(const float* x, int64_t n, float* sums);

// For every lane i < width, width a multiple of a vector's lanes, and rows r in ascending order: if
// sums[r * width + i] + bias[r] > best[i], it becomes best[i], and index[i] = first + r. bias may
// be null.
void BestRows(const float* sums, int64_t rows, int64_t width, const float* bias, int32_t first,
              float* best, int32_t* index);

// out[j][i] += sum over r < rows of weights[j * stride + r] * values[r][i], i < n, j < heads;
// values of bf16 or f32, out [heads][n].
void AddWeighted(DType dtype, const std::byte* const* values, int64_t rows, const float* weights,
                 int64_t stride, int64_t heads, int64_t n, float* out);

}  // namespace litecache::lab::ops::cpu
