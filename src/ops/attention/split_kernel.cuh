// Decode attention: one query token per sequence over any number of rows. And that of short chunks
// of one sequence, a few query tokens over its context and, causally, themselves: their queries are
// attended together, so that a KV row is read once for several tokens.
//
// The rows of all pairs (sequence, KV head, up to as many query heads as a tile's products support)
// are divided into tiles and the tiles into equal runs, one for each block, so that every SM reads
// the same amount for any batch. A run may span several pairs, and a pair several runs; if several
// blocks share a pair, each writes a partial result (Flash-Decoding), and the last one to finish
// merges them, in the blocks' order.
//
// Within a block each warp attends its own tiles: it copies them into its own part of shared
// memory, several in flight, and waits for no other warp until the pair ends; by then the next
// pair's tiles are in flight. A group's query heads are the rows of a matrix product, or its
// columns, so that a KV row is read once for all of them. `Tiles` defines a tile and how it is
// copied and attended: row_tiles.cuh or code_tiles.cuh.
#pragma once

#include <algorithm>

#include "device/cuda/check.h"
#include "device/cuda/cuda_device.h"
#include "ops/attention/attention_arrays.cuh"
#include "ops/attention/attention_kernels_cuda.h"
#include "ops/attention/split_merge.cuh"
#include "ops/attention/split_problem.cuh"
#include "ops/common/overlap.cuh"
#include "ops/common/shared_memory.cuh"
#include "ops/common/tensor_core.cuh"
#include "ops/common/vectors.cuh"

namespace litecache::ops::cuda::split {

template <class Tiles>
__global__ void __launch_bounds__(Tiles::kWarps * 32, 1)
    SplitKernel(const __grid_constant__ SplitProblem p) {
  extern __shared__ __align__(128) std::byte shared[];
  __shared__ typename Tiles::Results results;
  const uint32_t warps = blockDim.x / 32;
  auto* ends = reinterpret_cast<uint32_t*>(shared + warps * Tiles::kWarpBytes);
  const uint32_t warp = threadIdx.x / 32;
  const int32_t pairs = p.Pairs();
  // Resident rows were written by earlier steps, except the newest: only that row and the queries
  // depend on the preceding kernels, and the copies of the others start while those kernels run.
  bool waited = Tiles::kSlots || Tiles::kChunk || p.tables.hybrid || p.tables.listed ||
                p.tables.resident.table.table != kResident;
  PrefetchTables(p, pairs);
  if (threadIdx.x == 0) PrefetchToL2(p.arrivals + blockIdx.x);
  if (waited) WaitForKernelBefore();
  CountTiles<typename Tiles::Places>(p, pairs, results.tiles, ends);
  // Whole runs let the blocks that have different queries for the same rows read these at the same
  // time, so that all but one find them in the L2 cache: 8 tokens of 4 query heads over 131,072
  // rows take 193 us instead of 267, 16 take 345 instead of 515.
  const bool same_rows = Tiles::kChunk && p.query_blocks > 1;
  const uint32_t longer = same_rows ? ends[pairs] / gridDim.x / 5 : Tiles::kLonger;
  constexpr int kMostPairs = Tiles::kChunk ? 64 : 32;
  const TileSplit split = DealTiles<kMostPairs>(pairs, longer, ends);
  const uint32_t block = blockIdx.x;
  if (block >= split.blocks) {
    if (!waited) WaitForKernelBefore();
    return;
  }
  uint32_t begin = split.Begin(block);
  const uint32_t end = split.Begin(block + 1);

  // The last pair that begins at or before the block's first tile; pairs without tiles are skipped.
  int32_t pair = 0;
  for (int32_t after = pairs; after - pair > 1;) {
    const int32_t middle = (pair + after) / 2;
    (ends[middle] <= begin ? pair : after) = middle;
  }

  // Tile i of this warp is in stage i % kStages. All stages but one are in flight; that one is the
  // last that was attended. The loop over tiles also issues the first copies: its first `lead`
  // iterations attend nothing. (Code is fetched as slowly as data, and a short context has no time
  // to fetch two copies of it.)
  const uint32_t own_address = SharedAddress(shared) + warp * Tiles::kWarpBytes;
  Tiles::Prepare(own_address);
  TileReader<typename Tiles::Places> reader(p, ends, begin + warp, end, pair,
                                            typename Tiles::Places(&results));
  typename Tiles::Row row;                // of two tiles; each lane holds a row of one of them
  typename Tiles::Places::Lane next_row;  // of the next two
  bool newest = false, next_newest = false;
  typename Tiles::Attended attended;
  int half = 0, stage = Tiles::kStages - 1, free_stage = Tiles::kStages - 2;
  int lead = Tiles::kStages + 1;
  for (uint32_t tile = begin + warp; begin < end; ++pair) {
    const uint32_t pair_end = ends[pair + 1];
    const uint32_t stop = pair_end < end ? pair_end : end;
    if (stop <= begin) continue;
    const auto queries = p.template QueriesOf<Tiles::kQueries, Tiles::kChunk>(pair);
    if (tile < stop) {
      typename Tiles::Queries q;
      bool has_queries = false;
      typename Tiles::State state;
      state.Clear();
      while (tile < stop) {
        WaitForCopies<Tiles::kStages - 2>();
        // The other lanes' copies are done; all lanes have read the stage that is written next.
        __syncwarp();
        if (half == 0) {
          row = Tiles::Arrived(p, next_row);
          newest = next_newest;
          reader.Next(p.tables.hybrid && lead > 0, row, &next_row, &next_newest);
        }
        if (!waited && __any_sync(kAll, newest)) {
          WaitForKernelBefore();
          waited = true;
        }
        const uint32_t next = own_address + free_stage * Tiles::kStageBytes;
        Tiles::Copy(p, row, half, next, &attended);
        half ^= 1;
        if (!has_queries && lead <= 1) {  // while the first tiles are in flight
          if (!waited) WaitForKernelBefore();
          waited = has_queries = true;
          q.Load(p.arrays, queries);
        }
        if (lead > 0) {
          --lead;
        } else {
          const uint32_t own = own_address + stage * Tiles::kStageBytes;
          const unsigned visible = attended.Next(own, stage);
          if (visible != 0) Tiles::Attend(p.arrays, own, visible, tile - ends[pair], q, &state);
          tile += warps;
        }
        attended.Pass();
        free_stage = stage;
        stage = stage + 1 < Tiles::kStages ? stage + 1 : 0;
      }
      __syncwarp();  // all lanes have read the stage that the result is written to
      const int32_t place = warp * Tiles::kWarpBytes + free_stage * Tiles::kStageBytes;
      Tiles::Leave(state, queries.count, reinterpret_cast<float*>(shared + place), place, &results);
    } else if (threadIdx.x % 32 == 0) {
      results.out[warp] = -1;
    }
    if (!waited) WaitForKernelBefore();
    waited = true;
    if (stop == end) LetNextKernelStart();  // this block reads no more
    __syncthreads();
    const uint32_t first = split.BlockOf(ends[pair]), last = split.BlockOf(pair_end - 1);
    MergeWarps<Tiles::kHeadDim, Tiles::kChunk>(p, queries, results, shared,
                                               first == last ? nullptr : p.Partial(pair, block));
    if (first == last) {
      __syncthreads();  // the memory of the results may be overwritten
    } else {
      Arrive(p, pair, queries, first, last, &results);
    }
    begin = stop;
  }
}

template <class Tiles>
void Launch(CudaStream& stream, const SplitProblem& problem) {
  const size_t ends = (static_cast<size_t>(problem.Pairs()) + 1) * 4;
  const size_t most = AllowSharedMemory(SplitKernel<Tiles>);
  LC_CHECK(Tiles::kWarpBytes + ends <= most, "too many sequences and heads for one attention");
  const size_t warps = std::min<size_t>((most - ends) / Tiles::kWarpBytes, Tiles::kWarps);
  const int64_t blocks = std::min<int64_t>(stream.sm_count(), kMaxSplitBlocks);
  LaunchOverlapping(stream, SplitKernel<Tiles>, static_cast<unsigned>(blocks),
                    static_cast<unsigned>(warps * 32), warps * Tiles::kWarpBytes + ends, problem);
}

}  // namespace litecache::ops::cuda::split
