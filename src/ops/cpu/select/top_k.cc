#include "ops/cpu/select/top_k.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>

#include "ops/cpu/scratch.h"

namespace litecache::ops::cpu {
namespace {

// Integers in the scores' order.
int32_t Key(float score) {
  if (std::isnan(score)) return std::numeric_limits<int32_t>::min();
  const auto bits = std::bit_cast<int32_t>(score + 0.0f);
  return bits ^ ((bits >> 31) & 0x7fffffff);
}

}  // namespace

void TopK(const float* scores, int64_t n, int64_t k, int64_t first, int32_t* positions) {
  static thread_local Scratch scratch;
  auto* keys = scratch.Reserve<int32_t>(static_cast<size_t>(n));
  std::transform(scores, scores + n, keys, Key);
  std::nth_element(keys, keys + k - 1, keys + n, std::greater<>());
  const int32_t threshold = keys[k - 1];
  int64_t ties = k - std::count_if(keys, keys + n, [&](int32_t x) { return x > threshold; });
  for (int64_t i = 0, count = 0; count < k; ++i) {
    const int32_t key = Key(scores[i]);
    if (key > threshold || (key == threshold && ties-- > 0)) {
      positions[count++] = static_cast<int32_t>(first + i);
    }
  }
}

void FinishSelection(const float* scores, Selection& selection) {
  const int64_t n = selection.end - selection.begin;
  selection.count = std::min(selection.k, n);
  TopK(scores, n, selection.count, selection.begin, selection.positions);
  if (selection.scores != nullptr) std::copy_n(scores, n, selection.scores);
}

}  // namespace litecache::ops::cpu
