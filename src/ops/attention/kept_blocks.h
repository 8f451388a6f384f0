// Which rows the queries of a prompt chunk attend, in blocks.
#pragma once

#include <cstdint>

#include "ops/common/host_device.h"

namespace litecache::ops {

// Of one sequence's chunk and some of its query heads. Block b of rows holds rows [128 b, 128 (b +
// 1)), block i of queries holds the chunk's tokens [query_rows i, query_rows (i + 1)). A query
// attends the rows up to its own token that are in kept blocks. The first block of rows, and those
// that hold rows of a block of queries' own tokens, are always kept.
struct KeptBlocks {
  static constexpr int32_t kRows = 128;

  int32_t query_rows = 128;
  int32_t query_blocks = 0;
  int32_t words = 0;  // of the bits of a block of queries
  // [q_heads][query_blocks][words]: bit b % 32 of word b / 32 says whether block b is kept.
  uint32_t* bits = nullptr;

  LC_HOST_DEVICE const uint32_t* Of(int64_t q_head, int64_t query_block) const {
    return bits + (q_head * query_blocks + query_block) * words;
  }
};

}  // namespace litecache::ops
