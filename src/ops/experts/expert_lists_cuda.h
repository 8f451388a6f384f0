// The rows that each expert gets, grouped on the GPU: what the products of experts read.
//
// A pair is a row and one of its experts: pair p = row * active + i. Activations behind the first
// products have a row for every pair. Pairs whose expert is elsewhere are in no list.
#pragma once

#include <cstdint>

#include "device/cuda/cuda_device.h"
#include "ops/experts/experts.h"

namespace litecache::ops::cuda {

// Pairs of one expert, order[first] to order[first + count - 1]; count 0: there is no tile.
struct ExpertTile {
  int32_t expert, first, count;
};

struct ExpertLists {
  const int32_t* order = nullptr;     // [pairs], ascending by expert; null: the pairs themselves
  const ExpertTile* tiles = nullptr;  // [most_tiles], ascending by expert, those without pairs last
  int32_t most_tiles = 0;             // known without the routing
  int32_t tile_rows = 1;              // of a tile, at most
  // Without an order: of the pairs, only those before the first one whose expert is elsewhere.
  bool leading = false;
};

// Bytes of memory for lists of `pairs` pairs in tiles of `tile_rows`.
uint64_t ExpertListBytes(int64_t pairs, int64_t experts, int64_t tile_rows);

// Groups the pairs into tiles of up to tile_rows of one expert; one launch. memory:
// ExpertListBytes().
ExpertLists ListExperts(CudaStream& stream, const Routing& routing, int64_t experts,
                        int64_t tile_rows, void* memory);

}  // namespace litecache::ops::cuda
