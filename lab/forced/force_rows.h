// Rows forced on policies that select at every step, replacing the rows they found. They come from
// a table of bits, in which blocks of kForcedBlock positions represent the blocks at the same
// relative position of any context.
#pragma once

#include "lab/forced/force_reuse.h"
#include "lab/namespaces.h"
#include "ops/common/host_device.h"

namespace litecache::lab::ops {

inline constexpr int32_t kForcedBlock = 128;
inline constexpr int32_t kForcedBlockWords = kForcedBlock / 32;

// Number of blocks in a context of `past` tokens; the last block's words also represent those after
// it.
LC_HOST_DEVICE int32_t ForcedBlocks(int32_t past) {
  return past < 2 * kForcedBlock ? 1 : past / kForcedBlock;
}

// The position of word `word` of such a context in a table of `recorded` blocks. blocks * recorded
// < 2^31.
LC_HOST_DEVICE int32_t ForcedWord(int32_t word, int32_t blocks, int32_t recorded) {
  const int32_t own = word / kForcedBlockWords;
  const int32_t block = own < blocks ? own : blocks - 1;
  return block * recorded / blocks * kForcedBlockWords + word % kForcedBlockWords;
}

// Computes one head's rows on the calling thread: ForceOverlap's selection with all wanted rows
// "cached".
void ForceRows(const ForceOverlapWork& work);

}  // namespace litecache::lab::ops
