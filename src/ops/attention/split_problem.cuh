// The arguments of a split attention as its blocks see them: pairs (sequence, KV head, up to 16
// queries), the tiles of their rows, the run of tiles that each block has (split_tiles.cuh), and
// where those rows are. The queries of a pair are those of query heads for one token, or in a short
// chunk (kChunk) those of all query heads for several tokens.
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
  int32_t query_blocks = 0;  // in a group, or in a chunk of one: of up to kQueries queries each
  int32_t queries = 0;       // rows of a partial result: the most queries of a pair
  int32_t tokens = 0;        // of a pair, in a chunk
  uint32_t* arrivals = nullptr;
  float* partials = nullptr;

  struct Pair {
    int32_t sequence, head, query_block;
  };
  __host__ __device__ int32_t Pairs() const {  // for the largest number of sequences
    return tables.step.capacity * tables.kv_heads * query_blocks;
  }
  __device__ Pair PairOf(int32_t pair) const {
    const int32_t list = pair / query_blocks, sequence = list / tables.kv_heads;
    return {sequence, list - sequence * tables.kv_heads, pair - list * query_blocks};
  }
  // The tokens of a sequence of `past` tokens and `rows` new ones that a pair's last query attends.
  template <bool kChunk>
  __device__ int32_t Context(const Pair& at, int32_t past, int32_t rows) const {
    return past + (kChunk ? min(rows, (at.query_block + 1) * tokens) : 1);
  }
  template <bool kChunk>
  __device__ AttendedRows RowsOf(int32_t pair) const {
    const Pair at = PairOf(pair);
    const StepSequence& sequence = tables.step.sequences[at.sequence];
    return tables.Of(at.sequence, at.head, Context<kChunk>(at, sequence.past, sequence.rows));
  }
  // A pair's queries: the first one's row of q and of out, and its first column, and their number.
  template <bool kChunk>
  struct Queries {
    int32_t row, column, count;
    int32_t context;  // tokens that the first one attends; in a chunk

    __device__ int32_t Row(const AttentionArrays& a, int32_t query) const {
      return kChunk ? row + query / a.group : row;
    }
    __device__ int32_t Column(const AttentionArrays& a, int32_t query) const {
      return column + (kChunk ? query % a.group : query) * a.head_dim;
    }
  };
  template <int kQueries, bool kChunk>
  __device__ Queries<kChunk> QueriesOf(int32_t pair) const {
    const Pair at = PairOf(pair);
    const StepSequence& sequence = tables.step.sequences[at.sequence];
    const int32_t column = at.head * arrays.group * arrays.head_dim;
    if constexpr (kChunk) {
      const int32_t first = at.query_block * tokens;
      return {sequence.first_row + first, column, min(tokens, sequence.rows - first) * arrays.group,
              sequence.past + first + 1};
    }
    const int32_t first = at.query_block * kQueries, left = arrays.group - first;
    return {sequence.first_row, column + first * arrays.head_dim, left < queries ? left : queries,
            0};
  }
  // Partial results: maximum [queries], sum [queries], out [queries][head_dim], the latter two
  // relative to the maximum. Pair and block indices rise together, so their sum is unique.
  __device__ float* Partial(int32_t pair, uint32_t block) const {
    return partials + (static_cast<int64_t>(pair) + block) * queries * (arrays.head_dim + 2);
  }
};

// Prefetches what will be read of the sequences' tables, of their slots' state and of the sinks;
// the tables do not change within a step. Called by the whole block.
__device__ inline void PrefetchTables(const SplitProblem& p, int32_t pairs) {
  const AttendedTables& t = p.tables;
  const int32_t count = *t.step.count;
  for (int32_t pair = threadIdx.x; pair < pairs; pair += blockDim.x) {
    const auto at = p.PairOf(pair);
    const StepSequence& sequence = t.step.sequences[at.sequence];
    PrefetchToL2(&sequence.pages[t.slots.table.table]);
    PrefetchToL2(&sequence.pages[t.resident.table.table]);
    if (p.arrays.sinks != nullptr) PrefetchToL2(p.arrays.sinks + at.head * p.arrays.group);
    if (t.tables.resident.lists > 0) PrefetchToL2(t.tables.resident.list_of_head + at.head);
    if (t.hybrid && t.tables.slots.lists > 0) {
      const int32_t list = t.tables.slots.list_of_head[at.head];
      const HeadState* heads = sequence.heads;
      if (at.sequence < count && list >= 0) PrefetchToL2(heads + list);
      if (t.tables.refresh != nullptr) {
        PrefetchToL2(t.tables.refresh + int64_t{at.sequence} * t.kv_heads + at.head);
      }
    }
  }
}

// Writes ends[0 .. pairs]: the number of tiles in the preceding pairs. of_warps: one per warp,
// shared. Called by the whole block.
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
      // Loaded together with count, not after it.
      const int32_t rows = sequence.rows, past = sequence.past;
      // A sequence with fewer new tokens than others has fewer blocks of them.
      const int32_t first = Places::kChunk ? at.query_block * p.tokens : 0;
      if (at.sequence < count && rows > first) {
        tiles = Places::Tiles(
            p.tables.Of(at.sequence, at.head, p.template Context<Places::kChunk>(at, past, rows)));
      }
    }
    uint32_t sum = tiles;  // inclusive prefix sum over the lanes
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

// Divides the tiles among blocks. With few pairs, no block gets tiles of two pairs if that
// lengthens the runs by at most `longer` tiles: `ends` then describes pairs padded to whole runs.
// Up to kMost pairs are few. Called by the whole block.
template <int kMost>
__device__ inline TileSplit DealTiles(int32_t pairs, uint32_t longer, uint32_t* ends) {
  constexpr int kALane = kMost / 32;  // pairs lane, lane + 32 ...
  const uint32_t least = 2 * (blockDim.x / 32);
  const TileSplit even(ends[pairs], gridDim.x, least);
  if (pairs > kMost) return even;
  const int32_t lane = threadIdx.x % 32;
  uint32_t sums[kALane], longest = 0, busy = 0;
#pragma unroll
  for (int i = 0; i < kALane; ++i) {
    const int32_t pair = i * 32 + lane;
    sums[i] = pair < pairs ? ends[pair + 1] - ends[pair] : 0;
    longest = max(longest, __reduce_max_sync(kAll, sums[i]));
    busy += static_cast<uint32_t>(__popc(__ballot_sync(kAll, sums[i] > 0)));
  }
  if (busy == 0 || busy > gridDim.x) return even;
  const uint32_t blocks_a_pair = gridDim.x / busy;
  const uint32_t length = max((longest + blocks_a_pair - 1) / blocks_a_pair, least);
  if (length > max(even.length, least) + longer) return even;
  uint32_t blocks = 0;
#pragma unroll
  for (int i = 0; i < kALane; ++i) {  // inclusive prefix sums of the pairs' runs
    sums[i] = (sums[i] + length - 1) / length;
    for (int step = 1; step < 32; step *= 2) {
      const uint32_t other = __shfl_up_sync(kAll, sums[i], step);
      if (lane >= step) sums[i] += other;
    }
    sums[i] += blocks;
    blocks = __shfl_sync(kAll, sums[i], 31);
  }
  __syncthreads();
  if (threadIdx.x < 32) {
#pragma unroll
    for (int i = 0; i < kALane; ++i) {
      if (i * 32 + lane < pairs) ends[i * 32 + lane + 1] = sums[i] * length;
    }
  }
  __syncthreads();
  return TileSplit::Runs(blocks, length);
}

// A lane's row of a tile. Its stamp may still be in flight: Next() loads it in one place and never
// moves it, so that reading `Attended` two tiles later does not wait. (A value loaded on one of
// several paths is copied where they join, and the copy waits: that cost a memory latency for every
// second tile.)
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

// A warp's tiles, two at a time: lanes 0 - 15 hold the rows of one, lanes 16 - 31 those of the
// next.
template <class Places>
struct TileReader {
  const SplitProblem& p;
  const uint32_t* ends;
  uint32_t tile, end;  // the lane's next tile; the block's end
  int32_t pair;
  uint32_t pair_begin = 0, pair_end = 0;
  Places places;  // of the current pair

  // The warp handles tiles first, first + warps ... before `last`; `first_pair` must not be after
  // the pair of the first tile.
  __device__ TileReader(const SplitProblem& problem, const uint32_t* tile_ends, uint32_t first,
                        uint32_t last, int32_t first_pair, const Places& at)
      : p(problem),
        ends(tile_ends),
        tile(first + threadIdx.x % 32 / kTileRows * (blockDim.x / 32)),
        end(last),
        pair(first_pair),
        places(at) {}

  // Advances to the next two tiles; there are no rows behind the last tile. Starts loading the
  // rows' locations, which need not arrive before the result is used. newest: the row is the step's
  // own. ask: prefetch the rows before it is known whether they are attended. before: the previous
  // use of `next`.
  template <class Row>
  __device__ void Next(bool ask, const Row& before, typename Places::Lane* next, bool* newest) {
    typename Places::Place place;
    *newest = false;
    if (tile < end) {
      if (tile >= pair_end) {
        while (tile >= ends[pair + 1]) ++pair;
        pair_begin = ends[pair];
        pair_end = ends[pair + 1];
        places.Of(p.template RowsOf<Places::kChunk>(pair));
      }
      place = places.At(tile - pair_begin, ask, newest);
    }
    next->Fetch(p, place, before);
    tile += 2 * (blockDim.x / 32);
  }
};

}  // namespace litecache::ops::cuda::split
