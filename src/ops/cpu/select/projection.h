// The vectorized part of scoring projected keys.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/projection_select.h"

namespace litecache::ops::cpu {

// scores[j * stride + t] of the 32 tokens t of each of `blocks` blocks (from one block to the next
// 32 floats on), for `heads` query heads. query [heads][2 * pairs]: their components.
void ProjectionScores(const std::byte* data, int64_t blocks, int64_t pairs, const float* query,
                      int64_t heads, float* scores, int64_t stride);

}  // namespace litecache::ops::cpu
