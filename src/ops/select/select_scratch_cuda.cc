#include "ops/select/select_scratch_cuda.h"

#include <algorithm>

#include "ops/select/select_cuda.h"
#include "ops/slots/litecache_layer_cuda.h"

namespace litecache::ops::cuda {

int64_t KeyWords(int64_t max_context) { return (max_context + 63) / 32 * 32; }

int64_t BoundsBlocks(int64_t max_context) {
  return (max_context / BoundsFormat::kTokens + 3) / 2 * 2;
}

int64_t BoundsScratchWords(int64_t group, int64_t max_context) {
  // For every head the keys and the 64-bit entries to sort, at most the next power of two; and the
  // group's best ranks and selected blocks.
  return (5 * group + 2) * BoundsBlocks(max_context);
}

int64_t ChainItems(int64_t max_context) {
  // Candidates begin within 32 tokens of the first item's beginning.
  return std::max<int64_t>(1, (max_context + 31 + kChainItem - 1) / kChainItem);
}

int64_t ChainGroup(int64_t group) { return (group + 7) / 8 * 8; }

ChainLayout ChainLayoutOf(int64_t pairs, int64_t group, int64_t max_context) {
  int64_t next = 0;
  const auto take = [&](int64_t words) {
    const int64_t at = next;
    next += (words + 31) / 32 * 32;
    return at;
  };
  const int64_t items = ChainItems(max_context), heads = ChainGroup(group);
  ChainLayout layout = {};
  layout.shares = (pairs * kChainPairWords + 31) / 32 * 32;
  layout.first = layout.shares + kMaxChainBlocks * kChainShareWords;
  layout.query = take(heads * (kChainWords + 3));
  layout.partials = take(heads * items * 2);
  layout.coarse = take(kCoarseBins);
  layout.fine = take(kFineBins);
  layout.counts = take(items);
  layout.places = take(items);
  layout.offsets = take(2 * items);
  layout.keys = take(items * kChainItem);
  layout.listed = take(items * kChainItem);
  layout.norms = take(items * kChainItem / 2);
  layout.rest = take(items * kChainItem / 2);
  layout.centres = take(heads * (4 * items + 1));
  layout.items = items;
  layout.pair = next;
  return layout;
}

size_t SelectScratchBytes(const LiteCacheShape& shape, int64_t capacity, int64_t max_context) {
  const int64_t pairs = capacity * shape.kv_heads;
  const int64_t words =
      std::max(KeyWords(max_context), BoundsScratchWords(shape.group, max_context));
  const ChainLayout chain = ChainLayoutOf(pairs, shape.group, max_context);
  return static_cast<size_t>(4 * std::max(pairs * words, chain.first + pairs * chain.pair));
}

}  // namespace litecache::ops::cuda
