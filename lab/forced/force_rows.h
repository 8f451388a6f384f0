// Rows forced on those that select at every step, in the place of the rows they found. They come
// from a table of bits, of which blocks of kForcedBlock positions stand for the blocks at the same
// relative place of any context.
#pragma once

#include "lab/forced/force_reuse.h"
#include "ops/common/host_device.h"

namespace litecache::ops {

inline constexpr int32_t kForcedBlock = 128;
inline constexpr int32_t kForcedBlockWords = kForcedBlock / 32;

// Blocks of a context of `past` tokens; the last one's words stand for those behind it as well.
LC_HOST_DEVICE int32_t ForcedBlocks(int32_t past) {
  return past < 2 * kForcedBlock ? 1 : past / kForcedBlock;
}

// Where word `word` of such a context has its bits in a table of `recorded` blocks. blocks *
// recorded < 2^31.
LC_HOST_DEVICE int32_t ForcedWord(int32_t word, int32_t blocks, int32_t recorded) {
  const int32_t own = word / kForcedBlockWords;
  const int32_t block = own < blocks ? own : blocks - 1;
  return block * recorded / blocks * kForcedBlockWords + word % kForcedBlockWords;
}

// One head's rows on the calling thread: ForceOverlap's selection where all that is wanted is
// "cached".
void ForceRows(const ForceOverlapWork& work);

}  // namespace litecache::ops
