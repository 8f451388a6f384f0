// What a split attention is asked for, as its blocks see it: pairs (sequence, KV head, up to 16
// query heads), the tiles of their rows, the run of tiles that each block has (split_tiles.cuh),
// and where those rows are.
#pragma once

#include <algorithm>
#include <cstdint>

#include "device/cuda/cuda_device.h"
#include "ops/attention/attention_arrays.cuh"
#include "ops/attention/attention_kernels_cuda.h"
#include "ops/attention/split_tiles.cuh"
#include "ops/common/overlap.cuh"
#include "ops/common/vectors.cuh"

namespace litecache::ops::cuda::split {

inline constexpr int kTileRows = 16;
inline constexpr unsigned kAll = 0xffffffffu;
static_assert(kMaxSplitBlocks <= CudaStream::kArrivals);

struct SplitProblem {
  AttendedTables tables;
  AttentionArrays arrays;
  int32_t query_blocks = 0;  // of up to kQueries query heads each, a group
  int32_t queries = 0;       // rows of a partial result: min(group, kQueries)
  uint32_t* arrivals = nullptr;
  float* partials = nullptr;

  struct Pair {
    int32_t sequence, head, query_block;
  };
  __host__ __device__ int32_t Pairs() const {  // of the sequences there may be
    return tables.step.capacity * tables.kv_heads * query_blocks;
  }
  __device__ Pair PairOf(int32_t pair) const {
    const int32_t list = pair / query_blocks, sequence = list / tables.kv_heads;
    return {sequence, list - sequence * tables.kv_heads, pair - list * query_blocks};
  }
  __device__ AttendedRows RowsOf(int32_t pair) const {
    const Pair at = PairOf(pair);
    return tables.Of(at.sequence, at.head, tables.step.sequences[at.sequence].past + 1);
  }
  // A pair's queries: their row of q and of out, their first column, their number.
  struct Queries {
    int32_t row, column, count;
  };
  template <int kQueries>
  __device__ Queries QueriesOf(int32_t pair) const {
    const Pair at = PairOf(pair);
    const int32_t first = at.query_block * kQueries, left = arrays.group - first;
    return {tables.step.sequences[at.sequence].first_row,
            (at.head * arrays.group + first) * arrays.head_dim, left < queries ? left : queries};
  }
  // Partial results: maximum [queries], sum [queries], out [queries][head_dim], the latter two
  // relative to the maximum. As blocks go up so do pairs: the sum of both names one.
  __device__ float* Partial(int32_t pair, uint32_t block) const {
    return partials + (static_cast<int64_t>(pair) + block) * queries * (arrays.head_dim + 2);
  }
};

// Asks for what will be read of the sequences' tables, and of the state of their slots: the tables
// stay as they are for a whole step. Whole block.
__device__ inline void AskForTables(const SplitProblem& p, int32_t pairs) {
  const AttendedTables& t = p.tables;
  const int32_t count = *t.step.count;
  for (int32_t pair = threadIdx.x; pair < pairs; pair += blockDim.x) {
    const auto at = p.PairOf(pair);
    const StepSequence& sequence = t.step.sequences[at.sequence];
    AskFor(&sequence.pages[t.slots.table.table]);
    AskFor(&sequence.pages[t.resident.table.table]);
    if (t.tables.resident.lists > 0) AskFor(t.tables.resident.list_of_head + at.head);
    if (t.hybrid && t.tables.slots.lists > 0) {
      const int32_t list = t.tables.slots.list_of_head[at.head];
      const HeadState* heads = sequence.heads;
      if (at.sequence < count && list >= 0) AskFor(heads + list);
    }
  }
}

// Writes ends[0 .. pairs]: the tiles of the pairs before. of_warps: one a warp, shared. Whole
// block.
template <class Places>
__device__ inline void CountTiles(const SplitProblem& p, int32_t pairs, uint32_t* of_warps,
                                  uint32_t* ends) {
  const int32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int32_t warps = blockDim.x / 32;
  const int32_t count = *p.tables.step.count;
  uint32_t before = 0;
  for (int32_t begin = 0; begin < pairs; begin += blockDim.x) {
    const int32_t pair = begin + static_cast<int32_t>(threadIdx.x);
    uint32_t tiles = 0;
    if (pair < pairs) {
      const auto at = p.PairOf(pair);
      const StepSequence& sequence = p.tables.step.sequences[at.sequence];
      const int32_t rows = sequence.rows, past = sequence.past;  // beside count, not after it
      if (at.sequence < count && rows > 0) {
        tiles = Places::Tiles(p.tables.Of(at.sequence, at.head, past + 1));
      }
    }
    uint32_t sum = tiles;  // of this lane and those before
    for (int step = 1; step < 32; step *= 2) {
      const uint32_t other = __shfl_up_sync(kAll, sum, step);
      if (lane >= step) sum += other;
    }
    if (lane == 31) of_warps[warp] = sum;
    __syncthreads();
    for (int w = 0; w < warp; ++w) sum += of_warps[w];
    if (pair < pairs) ends[pair + 1] = before + sum;
    for (int w = 0; w < warps; ++w) before += of_warps[w];
    __syncthreads();
  }
  if (threadIdx.x == 0) ends[0] = 0;
  __syncthreads();
}

// The blocks' runs. Few pairs are dealt so that no block has tiles of two, where that makes the
// runs longer by at most `longer` tiles, what the end of a pair costs a block: `ends` are then
// those of pairs filled up to whole runs. Whole block.
__device__ inline TileSplit DealTiles(int32_t pairs, uint32_t longer, uint32_t* ends) {
  const uint32_t least = 2 * (blockDim.x / 32);
  const TileSplit even(ends[pairs], gridDim.x, least);
  if (pairs > 32) return even;
  const int32_t lane = threadIdx.x % 32;
  const uint32_t tiles = lane < pairs ? ends[lane + 1] - ends[lane] : 0;
  const uint32_t longest = __reduce_max_sync(kAll, tiles);
  const auto busy = static_cast<uint32_t>(__popc(__ballot_sync(kAll, tiles > 0)));
  if (busy == 0 || busy > gridDim.x) return even;
  const uint32_t blocks_a_pair = gridDim.x / busy;
  const uint32_t length = max((longest + blocks_a_pair - 1) / blocks_a_pair, least);
  if (length > max(even.length, least) + longer) return even;
  uint32_t sum = (tiles + length - 1) / length;  // runs of this lane's pair and those before
  for (int step = 1; step < 32; step *= 2) {
    const uint32_t other = __shfl_up_sync(kAll, sum, step);
    if (lane >= step) sum += other;
  }
  const uint32_t blocks = __shfl_sync(kAll, sum, 31);
  __syncthreads();
  if (threadIdx.x < 32 && lane < pairs) ends[lane + 1] = sum * length;
  __syncthreads();
  return TileSplit::Runs(blocks, length);
}

// A lane's row of a tile. Its stamp may still be on its way from memory: Next() loads it at one
// place and moves it nowhere, and who asks for `Attended` two tiles later does not wait for it.
// (What one of several paths loads is copied where they meet, and a copy waits: so it was, once in
// two tiles for as long as memory takes.)
struct RowOfTile {
  const std::byte* row = nullptr;  // null: none
  uint32_t stamp = 0, wanted = 0;
  bool stamped = false;

  __device__ void Fetch(const SplitProblem&, const AttendedRows::Place& place, const std::byte*) {
    row = place.row;
    wanted = place.wanted;
    stamped = place.stamp != nullptr;
    if (stamped) stamp = *place.stamp;
  }
  __device__ bool Attended() const { return row != nullptr && (!stamped || stamp == wanted); }
};

// A warp's tiles, two at a time: lanes 0 - 15 have the rows of one, lanes 16 - 31 those of the
// next.
template <class Places>
struct TileReader {
  const SplitProblem& p;
  const uint32_t* ends;
  uint32_t tile, end;  // the lane's next tile; the block's end
  int32_t pair;
  uint32_t pair_begin = 0, pair_end = 0;
  Places places;  // of the pair

  // The warp has tiles first, first + warps ... of those before `last`; `first_pair` is not behind
  // the pair of the first.
  __device__ TileReader(const SplitProblem& problem, const uint32_t* tile_ends, uint32_t first,
                        uint32_t last, int32_t first_pair, const Places& at)
      : p(problem),
        ends(tile_ends),
        tile(first + threadIdx.x % 32 / kTileRows * (blockDim.x / 32)),
        end(last),
        pair(first_pair),
        places(at) {}

  // The next two tiles; no rows behind the last tile. Loads what says where the rows are, which has
  // time until the result is used. newest: the row is the step's own. ask: for the rows, before it
  // is known whether they are attended. before: what `next` was used for.
  template <class Row>
  __device__ void Next(bool ask, const Row& before, typename Places::Lane* next, bool* newest) {
    typename Places::Place place;
    *newest = false;
    if (tile < end) {
      if (tile >= pair_end) {
        while (tile >= ends[pair + 1]) ++pair;
        pair_begin = ends[pair];
        pair_end = ends[pair + 1];
        places.Of(p.RowsOf(pair));
      }
      place = places.At(tile - pair_begin, ask, newest);
    }
    next->Fetch(p, place, before);
    tile += 2 * (blockDim.x / 32);
  }
};

}  // namespace litecache::ops::cuda::split
