// Launches the kernel for experts' packed blocks: one .cu file instantiates a few layouts, because
// each takes a while to compile.
#pragma once

#include <algorithm>

#include "ops/experts/quantized_experts.cuh"

namespace litecache::ops::cuda::quantized {

// The columns of a tile: as many as let warps work at least seven eighths of the time, if each had
// one.
constexpr int32_t SplitOf(int32_t chunks) {
  int32_t split = std::min(chunks, kSplit);
  while (chunks * 8 < (chunks + split - 1) / split * split * 7) --split;
  return split;
}

// The plan of `blocks` blocks: the batch of tiles and the segment of x that fit into `bytes` of
// shared memory; batch 0, if none do. All of x, if it fits with sums for a few tiles: reading x
// again takes longer than adding up more often.
template <typename Shape, typename Ring>
ExpertPlan MakeExpertPlan(const ExpertArguments& a, int32_t blocks, int64_t bytes) {
  using Shared = ExpertShared<Shape>;
  constexpr int32_t kMostBatch = 64;
  // Even, for pairs of tiles; with fewer, warps would wait for each other too often.
  constexpr int32_t kLeastBatch = Ring::kWarps / 2;
  const int32_t tiles_of_unit = a.result == ExpertResult::kGated ? 2 : 1;
  const int32_t units = a.lists.most_tiles * a.units;
  ExpertPlan plan{.split = SplitOf(a.product.chunks),
                  .tiles = (units + blocks - 1) / blocks * tiles_of_unit};
  bytes -= Ring::kBytes + kTileRowsBytes + Shared::TableBytes(plan.tiles);
  const int32_t most = std::min(plan.tiles, a.units * tiles_of_unit);
  const int32_t wanted = std::min((most + 1) / 2 * 2, kMostBatch);
  const int32_t all = (a.product.chunks + plan.split - 1) / plan.split;
  const auto most_batch = [&](int32_t segment) {
    plan.segment = segment;
    const int64_t left = bytes - Shared::XBytes(plan);
    return static_cast<int32_t>(
        std::clamp<int64_t>(left / Shared::TileBytes(plan) / 2 * 2, 0, wanted));
  };
  int32_t segment = all;
  while (segment > 1 && most_batch(segment) < std::min(wanted, kLeastBatch)) --segment;
  // Equally long segments, and then as many tiles as fit.
  const int32_t segments = (all + segment - 1) / segment;
  plan.batch = most_batch((all + segments - 1) / segments);
  plan.bytes = static_cast<int32_t>(Ring::kBytes + kTileRowsBytes + Shared::TableBytes(plan.tiles) +
                                    Shared::XBytes(plan) + plan.batch * Shared::TileBytes(plan));
  return plan;
}

template <int kLayout, int kRows, int kWarps>
void LaunchExperts(CudaStream& stream, const ExpertArguments& a) {
  using Shape = ChunkShape<kLayout, kRows>;
  using Ring = ExpertRing<Shape, kWarps>;
  constexpr int64_t kReservedBytes = 1024;  // of an SM's, what a block takes besides its own
  constexpr int32_t kMostTiles = 2048;      // of a block, so that their table leaves room
  const size_t most = AllowSharedMemory(&QuantizedExpertsKernel<kLayout, kRows, kWarps>);
  const int32_t units = a.lists.most_tiles * a.units;
  for (int32_t on_sm = Ring::kBlocksOfSm; on_sm > 0; --on_sm) {
    const int64_t bytes =
        std::min(SharedMemoryOfSm() / on_sm - kReservedBytes, static_cast<int64_t>(most));
    const int32_t blocks =
        std::max(std::min(units, on_sm * stream.sm_count()), 2 * units / kMostTiles);
    const ExpertPlan plan = MakeExpertPlan<Shape, Ring>(a, blocks, bytes);
    if (plan.batch == 0) continue;
    LaunchOverlapping(stream, QuantizedExpertsKernel<kLayout, kRows, kWarps>,
                      static_cast<unsigned>(blocks), Ring::kThreads,
                      static_cast<size_t>(plan.bytes), a, plan);
    return;
  }
  LC_CHECK(false, "{} bytes of shared memory", most);
}

template <int kLayout>
void LaunchExpertsLayout(CudaStream& stream, const ExpertArguments& a) {
  a.lists.tile_rows == 1 ? LaunchExperts<kLayout, 1, 8>(stream, a)
                         : LaunchExperts<kLayout, 8, 16>(stream, a);
}

}  // namespace litecache::ops::cuda::quantized
