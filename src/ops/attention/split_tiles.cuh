// How decode attention divides its work: the rows of all pairs (sequence, KV head, block of query
// heads) are divided into tiles, and all tiles into runs of equal length, one for each block.
#pragma once

#include <cstdint>

#include "ops/common/host_device.h"

namespace litecache::ops::cuda {

// Block b has tiles [Begin(b), Begin(b + 1)); the lengths of two blocks differ by at most one.
struct TileSplit {
  uint32_t blocks = 0;  // launched blocks that have tiles
  uint32_t length = 0, longer = 0;

  TileSplit() = default;
  // least: the minimum number of tiles of a block, unless there are fewer in total.
  LC_HOST_DEVICE TileSplit(uint32_t tiles, uint32_t launched, uint32_t least) {
    const uint32_t most = (tiles + least - 1) / least;
    blocks = most < launched ? most : launched;
    if (blocks == 0) return;
    length = tiles / blocks;
    longer = tiles - length * blocks;
  }
  // Blocks of `length` tiles each.
  static LC_HOST_DEVICE TileSplit Runs(uint32_t blocks, uint32_t length) {
    TileSplit split;
    split.blocks = blocks;
    split.length = length;
    return split;
  }
  LC_HOST_DEVICE uint32_t Begin(uint32_t block) const {
    return block * length + (block < longer ? block : longer);
  }
  LC_HOST_DEVICE uint32_t BlockOf(uint32_t tile) const {
    const uint32_t in_longer = longer * (length + 1);
    return tile < in_longer ? tile / (length + 1) : longer + (tile - in_longer) / length;
  }
};

}  // namespace litecache::ops::cuda
