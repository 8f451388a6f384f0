// Exact scores of rows in any format.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/common/row_format.h"

namespace litecache::ops::cpu {

// scores[j * stride + i] = q_j . K of row i at rows + i * row_bytes, i < count, j < heads. query
// [heads][padded]: head_dim values, then zeros up to PaddedDim(head_dim).
void RowScores(const RowFormat& format, const std::byte* rows, int64_t count, const float* query,
               int64_t heads, float* scores, int64_t stride);

constexpr int64_t PaddedDim(int64_t head_dim) { return (head_dim + 15) / 16 * 16; }

}  // namespace litecache::ops::cpu
