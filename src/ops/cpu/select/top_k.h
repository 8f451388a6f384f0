// The largest of many scores without sorting them.
#pragma once

#include <cstdint>

#include "ops/selection.h"

namespace litecache::ops::cpu {

// Writes first + i for the k largest of scores[i], i < n < 2^31, in ascending order; equal scores
// (0 and -0 are equal): the lower i. NaN is less than every number. 1 <= k <= n; positions [k].
void TopK(const float* scores, int64_t n, int64_t k, int64_t first, int32_t* positions);

// Fills a selection's results from scores[i] of candidate begin + i.
void FinishSelection(const float* scores, Selection& selection);

}  // namespace litecache::ops::cpu
