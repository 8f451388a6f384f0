// Which tiles and outputs a block of grouped_gemm.cu multiplies, one after another.
#pragma once

#include <cstdint>

#include "ops/experts/grouped_gemm_parts.cuh"

namespace litecache::ops::cuda::grouped {

// Tiles of the experts that a launch has weights of; they follow each other in the list.
struct TileRange {
  int32_t first, count;
};

// For all threads of a block. counts: [2] in shared memory.
__device__ inline TileRange FindTiles(const GroupedArguments& a, int32_t* counts) {
  const auto thread = static_cast<int32_t>(threadIdx.x);
  if (thread < 2) counts[thread] = 0;
  __syncthreads();
  int32_t before = 0, within = 0;
  for (int32_t i = thread; i < a.most_tiles; i += static_cast<int32_t>(blockDim.x)) {
    const ExpertTile tile = a.tiles[i];
    if (tile.count == 0) break;  // so are all that follow
    before += tile.expert < a.weights[0].begin ? 1 : 0;
    within += tile.expert >= a.weights[0].begin && tile.expert < a.weights[0].end ? 1 : 0;
  }
  before = __reduce_add_sync(0xffffffffu, before);
  within = __reduce_add_sync(0xffffffffu, within);
  if (thread % 32 == 0) {
    atomicAdd(&counts[0], before);
    atomicAdd(&counts[1], within);
  }
  __syncthreads();
  return {counts[0], counts[1]};
}

// A tile and the outputs from `first` on.
struct TileOutputs {
  ExpertTile tile;
  int32_t first;
};

// What one block multiplies. Blocks take turns, so that those that run at the same time have
// neighbouring tiles and outputs.
class TileOrder {
 public:
  // outputs: of a block at a time.
  __device__ TileOrder(const GroupedArguments& a, const TileRange& range, int32_t outputs)
      : tiles_(a.tiles + range.first),
        tile_count_(range.count),
        output_blocks_(a.output_blocks),
        outputs_(outputs) {
    const int32_t all = range.count * a.output_blocks;
    const auto block = static_cast<int32_t>(blockIdx.x), blocks = static_cast<int32_t>(gridDim.x);
    count_ = block < all ? (all - block - 1) / blocks + 1 : 0;
  }

  __device__ int32_t count() const { return count_; }

  // i may be count() or more, for a caller that reads ahead: the last then. There must be one.
  __device__ TileOutputs At(int32_t i) const {
    const int32_t turn = min(i, count_ - 1);
    const int32_t index = turn * static_cast<int32_t>(gridDim.x) + static_cast<int32_t>(blockIdx.x);
    const int32_t group = index / (kTileGroup * output_blocks_);
    const int32_t in_group = index - group * kTileGroup * output_blocks_;
    const int32_t size = min(kTileGroup, tile_count_ - group * kTileGroup);
    const int32_t output_block = in_group / size;
    return {tiles_[group * kTileGroup + in_group - output_block * size], output_block * outputs_};
  }

 private:
  const ExpertTile* tiles_;
  int32_t tile_count_, output_blocks_, outputs_, count_;
};

}  // namespace litecache::ops::cuda::grouped
