// Rows imposed on those that select at every step, in the place of the rows they found. They come
// from a table of bits, of which blocks of kImposedBlock positions stand for the blocks at the same
// relative place of any context.
#pragma once

#include "lab/impose/impose_reuse.h"
#include "ops/common/host_device.h"

namespace litecache::ops {

inline constexpr int32_t kImposedBlock = 128;
inline constexpr int32_t kImposedBlockWords = kImposedBlock / 32;

// Blocks of a context of `past` tokens; the last one's words stand for those behind it as well.
LC_HOST_DEVICE int32_t ImposedBlocks(int32_t past) {
  return past < 2 * kImposedBlock ? 1 : past / kImposedBlock;
}

// Where word `word` of such a context has its bits in a table of `recorded` blocks. blocks *
// recorded < 2^31.
LC_HOST_DEVICE int32_t ImposedWord(int32_t word, int32_t blocks, int32_t recorded) {
  const int32_t own = word / kImposedBlockWords;
  const int32_t block = own < blocks ? own : blocks - 1;
  return block * recorded / blocks * kImposedBlockWords + word % kImposedBlockWords;
}

// One head's rows on the calling thread: ImposeOverlap's selection where all that is wanted is
// "cached".
void ImposeRows(const ImposeOverlapWork& work);

}  // namespace litecache::ops
