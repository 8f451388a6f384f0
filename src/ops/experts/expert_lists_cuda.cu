#include <algorithm>

#include "base/error.h"
#include "ops/common/overlap.cuh"
#include "ops/experts/expert_lists_cuda.h"

namespace litecache::ops::cuda {
namespace {

constexpr int kThreads = 1024;
constexpr int kLoads = 8;  // in flight per thread
static_assert(kThreads >= kMostExperts);

struct ListArguments {
  const int32_t* experts;  // of the pairs
  int32_t pairs, count, tile_rows, most_tiles;
  int32_t* order;
  ExpertTile* tiles;
};

// Calls f(pair, its expert) for every pair whose expert is here.
template <typename F>
__device__ inline void ForEachPair(const ListArguments& a, const F& f) {
  for (int32_t begin = static_cast<int32_t>(threadIdx.x); begin < a.pairs;
       begin += kLoads * kThreads) {
    int32_t experts[kLoads];
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int32_t pair = begin + i * kThreads;
      experts[i] = pair < a.pairs ? a.experts[pair] : Routing::kElsewhere;
    }
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      if (experts[i] != Routing::kElsewhere) f(begin + i * kThreads, experts[i]);
    }
  }
}

// Of each thread, the sum over the threads before it. sums: [kThreads / 32], not read by anyone
// before the call's first barrier.
__device__ inline int32_t SumBefore(int32_t value, int32_t* sums) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  int32_t up_to = value;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const int32_t other = __shfl_up_sync(0xffffffffu, up_to, step);
    if (lane >= step) up_to += other;
  }
  if (lane == 31) sums[warp] = up_to;
  __syncthreads();
  int32_t before = up_to - value;
  for (int i = 0; i < warp; ++i) before += sums[i];
  return before;
}

// One block. The order of an expert's pairs depends on the threads' timing; no result does, because
// a row's sums do not depend on its place in a tile.
__global__ void __launch_bounds__(kThreads) ListKernel(const ListArguments a) {
  __shared__ int32_t counts[kThreads], firsts[kThreads], first_tiles[kThreads];
  __shared__ int32_t pair_sums[kThreads / 32], tile_sums[kThreads / 32];
  const int thread = static_cast<int>(threadIdx.x);
  counts[thread] = 0;
  __syncthreads();
  WaitForKernelBefore();
  LetNextKernelStart();
  ForEachPair(a, [&](int32_t, int32_t expert) { atomicAdd(&counts[expert], 1); });
  __syncthreads();
  const int32_t own = counts[thread];
  const int32_t own_tiles = (own + a.tile_rows - 1) / a.tile_rows;
  firsts[thread] = SumBefore(own, pair_sums);
  first_tiles[thread] = SumBefore(own_tiles, tile_sums);
  // A warp writes the tiles of its 32 experts, one expert after another.
  __syncwarp();
  const int lane = thread % 32;
  for (int32_t expert = thread - lane; expert < min(thread - lane + 32, a.count); ++expert) {
    const int32_t count = counts[expert];
    for (int32_t i = lane; i * a.tile_rows < count; i += 32) {
      a.tiles[first_tiles[expert] + i] = {expert, firsts[expert] + i * a.tile_rows,
                                          min(a.tile_rows, count - i * a.tile_rows)};
    }
  }
  __syncthreads();  // all have read the counts, which now become the next places
  const int32_t tiles =
      first_tiles[kThreads - 1] + (counts[kThreads - 1] + a.tile_rows - 1) / a.tile_rows;
  for (int32_t i = tiles + thread; i < a.most_tiles; i += kThreads) a.tiles[i] = {0, 0, 0};
  __syncthreads();
  counts[thread] = firsts[thread];
  __syncthreads();
  ForEachPair(a,
              [&](int32_t pair, int32_t expert) { a.order[atomicAdd(&counts[expert], 1)] = pair; });
}

int64_t MostTiles(int64_t pairs, int64_t experts, int64_t tile_rows) {
  return std::min(pairs, experts + pairs / tile_rows);
}

uint64_t OrderBytes(int64_t pairs) { return (static_cast<uint64_t>(pairs) * 4 + 255) / 256 * 256; }

}  // namespace

uint64_t ExpertListBytes(int64_t pairs, int64_t experts, int64_t tile_rows) {
  return OrderBytes(pairs) +
         static_cast<uint64_t>(MostTiles(pairs, experts, tile_rows)) * sizeof(ExpertTile);
}

ExpertLists ListExperts(CudaStream& stream, const Routing& routing, int64_t experts,
                        int64_t tile_rows, void* memory) {
  const int64_t pairs = routing.rows * routing.active;
  LC_CHECK(experts >= 1 && experts <= kMostExperts && tile_rows >= 1 && pairs <= INT32_MAX / 2);
  const auto most_tiles = static_cast<int32_t>(MostTiles(pairs, experts, tile_rows));
  auto* const order = static_cast<int32_t*>(memory);
  auto* const tiles =
      reinterpret_cast<ExpertTile*>(static_cast<uint8_t*>(memory) + OrderBytes(pairs));
  LaunchOverlapping(stream, ListKernel, 1, kThreads, 0,
                    ListArguments{.experts = routing.experts,
                                  .pairs = static_cast<int32_t>(pairs),
                                  .count = static_cast<int32_t>(experts),
                                  .tile_rows = static_cast<int32_t>(tile_rows),
                                  .most_tiles = most_tiles,
                                  .order = order,
                                  .tiles = tiles});
  return {.order = order,
          .tiles = tiles,
          .most_tiles = most_tiles,
          .tile_rows = static_cast<int32_t>(tile_rows)};
}

}  // namespace litecache::ops::cuda
