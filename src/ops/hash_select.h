// Selection by learned hashes (HATA): keys and queries become bits, rows with the fewest differing
// bits are selected.
#pragma once

#include <cstdint>
#include <span>

#include "device/device.h"
#include "ops/selection.h"

namespace litecache::ops {

// How codes lie in a page: blocks of 32 tokens, each [bits / 32][32] u32 words, then with norms
// [32] f16. Bit i of word w is bit 32 w + i of the code. So a vector of tokens is one load, for
// any width of vectors.
struct HashFormat {
  static constexpr int64_t kBlockTokens = 32;
  int64_t bits = 0;  // a multiple of 32
  bool norms = false;

  int64_t words() const { return bits / 32; }
  int64_t token_bytes() const { return 4 * words() + (norms ? 2 : 0); }
  int64_t block_bytes() const { return kBlockTokens * token_bytes(); }
};

// Keys of one (sequence, layer, KV head) into its metadata: bit i = (sum over c of x[c] *
// weight[c][i] > 0), norm = the key's Euclidean length, at most f16's largest number.
struct HashEncodeWork {
  const float* keys = nullptr;  // row i at keys + i * key_stride, head_dim values
  int64_t key_stride = 0;
  int64_t begin = 0, count = 0;   // positions [begin, begin + count)
  const float* weight = nullptr;  // [head_dim][bits]
  PagedMetadata metadata;
};
void HashEncode(Stream& stream, const HashFormat& format, int64_t head_dim,
                std::span<const HashEncodeWork> work);

// Scores over the group's m query heads, hashed with the same weight, H = the sum of the codes'
// differing bits: with norms (m - 2 H / bits) * norm, else -H. selection.scores: [end - begin].
struct HashSelectWork {
  const float* q = nullptr;  // [m][head_dim]
  const float* weight = nullptr;
  PagedMetadata metadata;
  Selection selection;
};
void HashSelect(Stream& stream, const HashFormat& format, int64_t group, int64_t head_dim,
                std::span<HashSelectWork> work);

}  // namespace litecache::ops
