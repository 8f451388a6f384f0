// Selection by the keys themselves, in a few bits a channel.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "device/device.h"
#include "ops/select/selection.h"

namespace litecache::ops {

// A key k is rotated, so that none of its channels is larger than the others, and is kept as
//   scale * (2 c_i + 1 - 2^bits) + centre_i      of channel i, codes c_i in [0, 2^bits).
// Centres take away what keys share, which in some models is far more than what tells them apart.
// They are means of keys as they are kept, so that nothing else is stored: in blocks of 32 tokens,
//   0                          of a sequence's first block,
//   the first block's mean     of every eighth block, and of the seven behind the first,
//   the mean of the last block before it whose number is a multiple of eight    of all others,
// which follows RoPE's slow channels (lab/notes/keys.md).
//
// Blocks of 32 tokens, each [words][32] u32, then [32] f16 scales. Channel i's code is in word
// i / (32 / bits), at bit 8 (i % 4) + bits * (i / 4 % (8 / bits)): a shift and a mask make bytes of
// four channels, whose products with four bytes of a query are one instruction. Channels from
// head_dim on have code 0.
struct KeysFormat {
  static constexpr int64_t kBlockTokens = 32;
  static constexpr int64_t kCentreTokens = 8 * kBlockTokens;
  int64_t head_dim = 0;
  int64_t bits = 0;  // 2 or 4

  int64_t words() const { return (head_dim * bits + 31) / 32; }
  int64_t token_bytes() const { return 4 * words() + 2; }
  int64_t block_bytes() const { return kBlockTokens * token_bytes(); }
  // Floats of a rotated key, which is zero from head_dim on.
  int64_t stride() const { return (head_dim + 15) / 16 * 16; }
  // Channels of one Hadamard transform: the largest power of two that divides head_dim.
  int64_t run() const { return head_dim & -head_dim; }
  int32_t offset() const { return (1 << bits) - 1; }
  // Half a step between values over the root mean square of a key's channels: of what was tried the
  // best for attention.
  float step() const { return bits == 4 ? 0.15f : 0.5f; }
};

// An orthogonal matrix that spreads any channel over all, for any head_dim: channels get random
// signs, every run of them (KeysFormat::run) a Hadamard transform, and the n = head_dim / run
// channels at the same place of all runs a cosine transform. With c = run * r + i the matrix is
//   [c][run * s + j] = factors[c] * (-1)^(number of bits of i & j) * cosines[r][s],
// of which this returns the factors [head_dim] and, behind them, the cosines [n][n]. d log d
// additions take a third of the time of d * d products on a GPU. The same everywhere.
std::vector<float> KeysRotation(int64_t head_dim);

// Keys of one (sequence, layer, KV head), in the order of their positions, in one call or more. A
// key whose square is not finite is kept as its centre.
struct KeysEncodeWork {
  const float* keys = nullptr;  // row i at keys + i * key_stride, head_dim values
  int64_t key_stride = 0;
  int64_t begin = 0, count = 0;
  const float* rotation = nullptr;  // KeysRotation
  PagedMetadata metadata;
};
void KeysEncode(Stream& stream, const KeysFormat& format, std::span<const KeysEncodeWork> work);

// Score: the sum over the group's query heads of softmax(scale * q.k) over the candidates, of kept
// keys and rotated queries, these rounded to 127 steps of their largest channel on either side. A
// query that is not finite scores every key alike.
// selection.scores: [end - begin].
struct KeysSelectWork {
  const float* q = nullptr;  // [group][head_dim]
  const float* rotation = nullptr;
  float scale = 0;  // > 0
  float cap = 0;    // as of ExactSelectWork
  PagedMetadata metadata;
  Selection selection;
};
void KeysSelect(Stream& stream, const KeysFormat& format, int64_t group,
                std::span<KeysSelectWork> work);

}  // namespace litecache::ops
