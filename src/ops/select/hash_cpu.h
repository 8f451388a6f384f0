// The vectorized parts of hashing.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "ops/select/hash_select.h"

namespace litecache::ops::cpu {

// code[w] bit i = x[32 w + i] > 0, i < 32, w < words.
void PackSigns(const float* x, int64_t words, uint32_t* code);

float Norm(const float* x, int64_t n);

// The codes of a group's m query heads, prepared for comparison with one code: the sum of differing
// bits is
//   base + (sum over planes p of 2^p * popcount((code ^ majority) & plane[p])) << shift,
// because a bit that agrees with the heads' majority differs only from the minority, and one that
// does not differs from |m - 2 c| more heads, with c the number of heads that have the bit set. A
// group of four takes two population counts per word instead of four, a group of eight three.
struct HashQuery {
  static constexpr int64_t kMaxWords = 64;
  static constexpr int64_t kMaxPlanes = 8;
  int64_t words = 0;
  int64_t planes = 0;
  int32_t base = 0;
  int32_t shift = 0;
  std::array<uint32_t, kMaxWords> majority{};
  std::array<std::array<uint32_t, kMaxWords>, kMaxPlanes> plane{};
};
HashQuery MakeHashQuery(const uint32_t* codes, int64_t group, int64_t words);

// Scores of `blocks` blocks of 32 tokens: [blocks][32].
void HashScores(const HashFormat& format, const HashQuery& query, int64_t group,
                const std::byte* data, int64_t blocks, float* scores);

// Estimates of every head's products with the tokens of `blocks` blocks of 32, with norms: scores[j
// * stride + t] = (1 - 2 H_j / bits) * norm_t * length_j, codes [group][words], lengths [group].
void HashHeadScores(const HashFormat& format, const uint32_t* codes, const float* lengths,
                    int64_t group, const std::byte* data, int64_t blocks, float* scores,
                    int64_t stride);

}  // namespace litecache::ops::cpu
