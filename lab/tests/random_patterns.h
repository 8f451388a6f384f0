// Random blocks of a prompt for tests, not recorded from a model, and what they are at another
// length by the words of lab/blocks/block_map.h.
#pragma once

#include <algorithm>
#include <random>

#include "lab/blocks/block_patterns.h"
#include "lab/namespaces.h"

namespace litecache::lab {

inline BlockPatterns RandomPatterns(std::mt19937_64& random, int64_t layers, int64_t q_heads,
                                    int64_t query_rows, int64_t tokens) {
  BlockPatterns p;
  p.layers = layers;
  p.q_heads = q_heads;
  p.query_rows = query_rows;
  p.tokens = tokens;
  p.mass = 0.97;
  p.model = "model";
  p.text = "text \xff";
  p.text_hash = "0123456789abcdef";
  p.bits.resize(static_cast<size_t>(layers * q_heads * p.query_blocks() * p.words()));
  for (int64_t head = 0; head < layers * q_heads; ++head) {
    const double share = std::uniform_real_distribution<>(0.05, 0.9)(random);
    for (int64_t row = 0; row < p.query_blocks(); ++row) {
      const int64_t own = row * query_rows / 128, seen = ((row + 1) * query_rows - 1) / 128 + 1;
      for (int64_t b = 0; b < seen; ++b) {
        const bool kept = b == 0 || b >= own || std::bernoulli_distribution(share)(random);
        if (kept) p.Of(0, head, row)[b / 32] |= 1u << b % 32;
      }
    }
  }
  return p;
}

// Whether queries whose first is at position `first` keep a block before their own. layer: of the
// patterns; head: of the patterns.
inline bool KeptAtPosition(const BlockPatterns& p, int64_t layer, int64_t head, int64_t first,
                           int64_t block) {
  int64_t row = first / p.query_rows;
  const int64_t last = p.query_blocks() - 1;
  // One step at a time: back to the middle, forth to the end.
  for (int64_t at = last + 1, walk = last, step = -1; at <= row; ++at) {
    if (at == row) {
      row = walk;
      break;
    }
    const int64_t least = p.query_blocks() / 2;
    if (last > least) {
      if (walk + step < least || walk + step > last) step = -step;
      walk += step;
    }
  }
  const int64_t own = first / 128, recorded_own = row * p.query_rows / 128;
  int64_t from = block;
  if (block >= 4) {
    from = recorded_own - (own - block);
    if (own - block > 16)
      from = 4 + (block - 4) * std::max<int64_t>(recorded_own - 20, 0) / (own - 20);
  }
  from = std::clamp<int64_t>(from, 0, recorded_own);
  return p.Keeps(layer, head, row, from);
}

}  // namespace litecache::lab
