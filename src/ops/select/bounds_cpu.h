// The vectorized parts of bounds on blocks of keys.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/select/bounds_select.h"

namespace litecache::ops::cpu {

// low, high [head_dim] = the minimum and maximum of each channel over `rows` >= 1 rows.
void MinMaxRows(const float* x, int64_t stride, int64_t rows, int64_t head_dim, float* low,
                float* high);

// group [head_dim][kGroup]: sets (start) or widens block `index`'s bounds to low and high.
void StoreBounds(const float* low, const float* high, int64_t head_dim, int64_t index, bool start,
                 uint32_t* group);

// Writes scores[j * stride + b] of the kGroup blocks b of a group for `heads` query heads j.
// positive, negative [heads][head_dim]: max(q, 0) and min(q, 0).
void BoundsScores(const uint32_t* group, int64_t head_dim, const float* positive,
                  const float* negative, int64_t heads, float* scores, int64_t stride);

}  // namespace litecache::ops::cpu
