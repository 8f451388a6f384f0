// Recorded blocks at another length, on both devices.
//
// Attention is causal: the queries of a prompt's first tokens cannot know how long it is. So
// queries at positions that were recorded keep what was recorded there. Queries behind the
// recording's end keep what its second half kept, played backwards and forwards: the first
// kFirstBlocks blocks of rows and the kLastBlocks before their own as recorded, by their distance
// from the beginning and from the queries; of the rows between these as recorded at the same
// relative position, every block as often as the length has grown. The share of the middle that is
// kept stays what it is at the recording's end, where a model's falls with the length.
#pragma once

#include <cstdint>

#include "lab/namespaces.h"
#include "ops/attention/kept_blocks.h"
#include "ops/common/host_device.h"

namespace litecache::lab {

// Recorded bits in host or device memory.
struct RecordedBlocks {
  // [layers][q_heads][query_blocks][words]: as ops::KeptBlocks::bits.
  const uint32_t* bits = nullptr;
  int32_t q_heads = 0;
  int32_t query_rows = 0;  // tokens of a block of queries
  int32_t query_blocks = 0;
  int32_t words = 0;
};

// What a block of queries keeps of the blocks before its own.
struct MappedBlocks {
  static constexpr int32_t kFirstBlocks = 4, kLastBlocks = 16;

  const uint32_t* bits = nullptr;  // of the recorded block of queries
  int32_t own = 0;                 // the block of rows that the first query's token is in
  int32_t recorded_own = 0;

  // Blocks between the first and the last ones: here, and at the recorded block of queries.
  LC_HOST_DEVICE int32_t middle() const { return Between(own); }
  LC_HOST_DEVICE int32_t recorded_middle() const { return Between(recorded_own); }

  // The recorded block of rows for one before `own`.
  LC_HOST_DEVICE int32_t Recorded(int32_t block) const {
    if (block < kFirstBlocks) return Within(block);
    if (block >= own - kLastBlocks) return Within(recorded_own - (own - block));
    return Within(kFirstBlocks + static_cast<int32_t>(int64_t{block - kFirstBlocks} *
                                                      recorded_middle() / middle()));
  }
  LC_HOST_DEVICE bool Kept(int32_t block) const {
    if (block == 0 || block >= own) return true;
    const int32_t recorded = Recorded(block);
    return (bits[recorded / 32] >> recorded % 32 & 1) != 0;
  }

 private:
  LC_HOST_DEVICE static int32_t Between(int32_t end) {
    const int32_t blocks = end - kFirstBlocks - kLastBlocks;
    return blocks > 0 ? blocks : 0;
  }
  LC_HOST_DEVICE int32_t Within(int32_t block) const {
    return block < 0 ? 0 : block > recorded_own ? recorded_own : block;
  }
};

// The recorded block of queries for one whose first token is at position `first`.
LC_HOST_DEVICE int32_t RecordedQueries(const RecordedBlocks& recorded, int64_t first) {
  const int64_t block = first / recorded.query_rows;
  if (block < recorded.query_blocks) return static_cast<int32_t>(block);
  const int64_t half = (recorded.query_blocks + 1) / 2;
  if (half == 1) return recorded.query_blocks - 1;
  const int64_t at = (block - recorded.query_blocks) % (2 * (half - 1));
  const int64_t back = at < half ? at : 2 * (half - 1) - at;
  return static_cast<int32_t>(recorded.query_blocks - 1 - back);
}

// layer, head: of the recording. first: position of the first query's token.
LC_HOST_DEVICE MappedBlocks MapBlocks(const RecordedBlocks& recorded, int64_t layer, int64_t head,
                                      int64_t first) {
  const int64_t query_block = RecordedQueries(recorded, first);
  MappedBlocks mapped;
  mapped.bits =
      recorded.bits +
      ((layer * recorded.q_heads + head) * recorded.query_blocks + query_block) * recorded.words;
  mapped.own = static_cast<int32_t>(first / ops::KeptBlocks::kRows);
  mapped.recorded_own =
      static_cast<int32_t>(query_block * recorded.query_rows / ops::KeptBlocks::kRows);
  return mapped;
}

// Layers: the nearest in relative depth.
inline int64_t RecordedLayer(int64_t layer, int64_t layers, int64_t recorded_layers) {
  if (layers == 1) return 0;
  return (2 * layer * (recorded_layers - 1) + layers - 1) / (2 * (layers - 1));
}

// Heads: by turns, over the heads of all layers, so that each recorded one has about as many.
LC_HOST_DEVICE int64_t RecordedHead(int64_t layer, int64_t head, int64_t q_heads,
                                    int64_t recorded_heads) {
  return (layer * q_heads + head) % recorded_heads;
}

}  // namespace litecache::lab
