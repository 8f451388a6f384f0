// Finds the largest haystack that fits a length, with few token counts.
#pragma once

#include <cstdint>
#include <functional>

namespace litecache::eval {

struct SizeGuess {
  double tokens_at_zero = 0;  // tokens of a text without haystack
  double tokens_per_unit = 1;
};

// The largest size in [low, high] with tokens(size) <= budget, assuming that tokens() grows with
// the size (if it does not quite, the result still fits and the next size does not). Brackets from
// `guess`: about five counts with a good guess instead of the fifteen of plain bisection, because
// counting 32K tokens dominates the cost. Returns low - 1 if `low` does not fit.
int64_t LargestFit(int64_t low, int64_t high, int64_t budget, const SizeGuess& guess,
                   const std::function<int64_t(int64_t)>& tokens);

}  // namespace litecache::eval
