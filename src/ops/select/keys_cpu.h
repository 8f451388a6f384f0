// The vectorized parts of keeping keys in a few bits and of scoring them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/select/keys_select.h"

namespace litecache::ops::cpu {

// Codes of a rotated key x [stride], which is 0 from head_dim on, and its scale.
void KeysRound(const KeysFormat& format, const float* x, int32_t* codes, float* scale);

// A group's rotated queries, as scores are computed with them.
struct KeysQuery {
  // Bytes of four channels each, [heads][groups()].
  const int32_t* bytes = nullptr;
  const float* factor = nullptr;  // [heads]: a byte's unit
  const int32_t* sum = nullptr;   // [heads]: of the bytes, times the format's offset
  static int64_t Groups(const KeysFormat& format) { return format.words() * 8 / format.bits; }
};

// scores[j * stride + t] of the 32 tokens t of each of `blocks` blocks (from one block to the next
// 32 floats on), for `heads` query heads; shift [heads]: their products with the keys' centre.
void KeysScores(const KeysFormat& format, const std::byte* data, int64_t blocks,
                const KeysQuery& query, const float* shift, int64_t heads, float* scores,
                int64_t stride);

}  // namespace litecache::ops::cpu
