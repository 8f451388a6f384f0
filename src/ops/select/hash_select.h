// Selection by learned hashes (HATA): keys and queries become bits, and rows with the fewest
// differing bits are selected.
#pragma once

#include <cstdint>
#include <span>

#include "device/device.h"
#include "ops/select/selection.h"

namespace litecache::ops {

// The layout of codes in a page: blocks of 32 tokens, each [bits / 32][32] u32 words, then with
// norms [32] f16. Bit i of word w is bit 32 w + i of the code. A vector of tokens is one load, for
// any vector width.
struct HashFormat {
  static constexpr int64_t kBlockTokens = 32;
  int64_t bits = 0;  // a multiple of 32
  bool norms = false;

  int64_t words() const { return bits / 32; }
  int64_t token_bytes() const { return 4 * words() + (norms ? 2 : 0); }
  int64_t block_bytes() const { return kBlockTokens * token_bytes(); }
};

// Encodes keys of one (sequence, layer, KV head) into its metadata: bit i = (sum over c of x[c] *
// weight[c][i] > 0), norm = the key's Euclidean length, at most the largest f16.
struct HashEncodeWork {
  const float* keys = nullptr;  // row i at keys + i * key_stride, head_dim values
  int64_t key_stride = 0;
  int64_t begin = 0, count = 0;   // positions [begin, begin + count)
  const float* weight = nullptr;  // [head_dim][bits]
  PagedMetadata metadata;
};
void HashEncode(Stream& stream, const HashFormat& format, int64_t head_dim,
                std::span<const HashEncodeWork> work);

// How the scores of a group's m query heads, hashed with the same weight, are combined. H_j: the
// number of bits in which a key's code differs from that of head j.
enum class HashScore {
  // HATA: with norms (m - 2 sum of H_j / bits) * norm, otherwise minus the sum of H_j.
  kSum,
  // The softmax over the candidates of (1 - 2 H_j / bits) * norm * |q_j| * scale, an estimate of
  // scale * q_j.k, summed over the heads, like scores that are not hashed. Requires norms.
  kSoftmax,
};

struct HashSelectWork {
  const float* q = nullptr;  // [m][head_dim]
  float scale = 0;           // multiplies q.k; used by kSoftmax
  float cap = 0;             // as of ExactSelectWork; used by kSoftmax
  const float* weight = nullptr;
  PagedMetadata metadata;
  Selection selection;
};
void HashSelect(Stream& stream, const HashFormat& format, HashScore score, int64_t group,
                int64_t head_dim, std::span<HashSelectWork> work);

}  // namespace litecache::ops
