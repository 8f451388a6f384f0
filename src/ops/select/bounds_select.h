// Selection of whole blocks of tokens by a bound on their scores (Quest).
#pragma once

#include <cstdint>
#include <span>

#include "device/device.h"
#include "ops/select/selection.h"

namespace litecache::ops {

// A block is kTokens tokens, aligned to its position, with each channel's minimum and maximum.
// kGroup blocks are interleaved: [head_dim][kGroup] u32, bf16 minimum in the lower half and bf16
// maximum in the upper, rounded outwards, so that a vector of blocks is one load per channel.
struct BoundsFormat {
  static constexpr int64_t kTokens = 16;
  static constexpr int64_t kGroup = 16;
  static constexpr int64_t kGroupTokens = kTokens * kGroup;
  int64_t head_dim = 0;

  int64_t group_bytes() const { return 4 * kGroup * head_dim; }
};

// Widens the bounds of the blocks that contain positions [begin, begin + count). A block whose
// first token is among them starts anew: its previous contents are never read.
struct BoundsEncodeWork {
  const float* keys = nullptr;  // row i at keys + i * key_stride, head_dim values
  int64_t key_stride = 0;
  int64_t begin = 0, count = 0;
  PagedMetadata metadata;
};
void BoundsEncode(Stream& stream, const BoundsFormat& format,
                  std::span<const BoundsEncodeWork> work);

// A block's score for a query head: sum over c of max(q[c] * min[c], q[c] * max[c]), never below
// q.k of a token in it (to f32 rounding). Every query head of the group ranks the blocks
// separately; blocks are selected in the order of their best rank over the heads (equal: the lower
// position first) until k / kTokens are selected. With k < kTokens: the first k candidates of the
// first such block. Blocks that extend beyond [begin, end) are cut to it. selection.scores:
// [group][blocks], from the block that contains begin to the one that contains end - 1.
struct BoundsSelectWork {
  const float* q = nullptr;  // [group][head_dim]
  PagedMetadata metadata;
  Selection selection;
};
void BoundsSelect(Stream& stream, const BoundsFormat& format, int64_t group,
                  std::span<BoundsSelectWork> work);

}  // namespace litecache::ops
