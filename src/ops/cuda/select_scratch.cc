#include "ops/cuda/select_scratch.h"

#include <algorithm>

#include "ops/cuda/litecache.h"

namespace litecache::ops::cuda {

int64_t KeyWords(int64_t max_context) { return (max_context + 63) / 32 * 32; }

int64_t BoundsBlocks(int64_t max_context) {
  return (max_context / BoundsFormat::kTokens + 3) / 2 * 2;
}

int64_t BoundsScratchWords(int64_t group, int64_t max_context) {
  // Of every head the keys and, to be sorted, at most as many 64-bit entries as the next power of
  // two; best ranks and selected blocks of the group.
  return (5 * group + 2) * BoundsBlocks(max_context);
}

size_t SelectScratchBytes(const LiteShape& shape, int64_t capacity, int64_t max_context) {
  const int64_t words =
      std::max(KeyWords(max_context), BoundsScratchWords(shape.group, max_context));
  return static_cast<size_t>(4 * capacity * shape.kv_heads * words);
}

}  // namespace litecache::ops::cuda
