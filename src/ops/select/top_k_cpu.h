// The largest of many scores without sorting them.
#pragma once

#include <cstdint>

#include "ops/select/selection.h"

namespace litecache::ops::cpu {

// Writes first + i for the k largest of scores[i], i < n < 2^31, in ascending order; among equal
// scores (0 and -0 are equal) the lower i. NaN is less than every number. 1 <= k <= n; positions
// [k].
void TopK(const float* scores, int64_t n, int64_t k, int64_t first, int32_t* positions);

// The same for scores >= 0, whose bits sort like the scores, or NaN: they are not copied.
// Overwrites kTopKPadding elements behind them.
// Elements that a vector may read or write beyond the end.
inline constexpr int64_t kTopKPadding = 64;
void TopKOfPositive(float* scores, int64_t n, int64_t k, int64_t first, int32_t* positions);

// How many of scores[0 .. n) are at least `least`.
int64_t CountReaching(const float* scores, int64_t n, float least);

// TopK's sample: kTopKSamples positions of n >= kTopKMinSampled, chosen without a period that
// scores may share. Declared here so that tests can construct scores that mislead it.
inline constexpr int64_t kTopKSamples = 512;
inline constexpr int64_t kTopKMinSampled = 2048;
inline int64_t TopKSamplePosition(int64_t i, int64_t n) {
  const int64_t stride = n / kTopKSamples;
  const uint32_t random = static_cast<uint32_t>(i) * 2654435761u;
  return i * stride + (static_cast<int64_t>(random >> 8) * stride >> 24);
}

// Fills a selection's results from scores[i] of candidate begin + i.
void FinishSelection(const float* scores, Selection& selection);
void FinishPositive(float* scores, Selection& selection);  // with TopKOfPositive

}  // namespace litecache::ops::cpu
