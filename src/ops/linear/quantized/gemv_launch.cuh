// Launches the quantized GEMV: one .cu file instantiates a few layouts, because each takes a while
// to compile.
#pragma once

#include <algorithm>

#include "ops/linear/quantized/gemv.cuh"

namespace litecache::ops::cuda::quantized {

// Of an SM's shared memory, what a block takes besides its own.
constexpr int64_t kReservedBytes = 1024;
// Where a block's tiles are.
constexpr int64_t TableBytes(int32_t tiles) { return (tiles + 1) / 2 * 2 * int64_t{8}; }

// A block's plan: the batch of tiles and the segment of x that fit into `bytes` of shared memory;
// batch 0, if none do. All of x, if it fits with sums for two tiles: reading x again takes longer
// than adding up more often.
template <typename Shape, typename Rings>
Plan MakePlan(int32_t units, int32_t blocks, bool gated, int32_t chunks, int64_t bytes) {
  using Parts = SharedParts<Shape>;
  constexpr int32_t kLeastBatch = 2, kMostBatch = 64;  // even: for two teams, or pairs of tiles
  Plan plan{.share = units / blocks, .more = units % blocks};
  const int32_t tiles = (plan.share + (plan.more > 0 ? 1 : 0)) * (gated ? 2 : 1);
  bytes -= TableBytes(tiles) + Rings::kBytes;
  const int32_t wanted = std::clamp((tiles + 1) / 2 * 2, kLeastBatch, kMostBatch);
  const int32_t all = (chunks + kSplit - 1) / kSplit;
  const auto most_batch = [&](int32_t segment) {
    const int64_t left = bytes - Parts::XBytes(segment);
    return static_cast<int32_t>(std::min<int64_t>(wanted, left / Parts::kTileBytes / 2 * 2));
  };
  plan.segment = all;
  while (plan.segment > 1 && most_batch(plan.segment) < kLeastBatch) --plan.segment;
  // Equally long segments, and then as many tiles as fit.
  const int32_t segments = (all + plan.segment - 1) / plan.segment;
  plan.segment = (all + segments - 1) / segments;
  plan.batch = std::max(most_batch(plan.segment), 0);
  if (plan.batch < kLeastBatch) plan.batch = 0;
  plan.bytes =
      static_cast<int32_t>(Rings::kBytes + TableBytes(tiles) +
                           int64_t{plan.batch} * Parts::kTileBytes + Parts::XBytes(plan.segment));
  return plan;
}

// Of a number of blocks, those that have equal shares.
inline int32_t EvenBlocks(int32_t units, int32_t most) {
  const int32_t share = (units + most - 1) / most;
  return (units + share - 1) / share;
}

template <int kLayout, int kRows, int kTeams>
void LaunchRows(CudaStream& stream, const Arguments& a, int32_t units) {
  using Shape = ChunkShape<kLayout, kRows>;
  using Rings = Ring<Shape, kTeams>;
  const size_t most = AllowSharedMemory(&QuantizedGemvKernel<kLayout, kRows, kTeams>);
  const int64_t of_sm = SharedMemoryOfSm();
  // Two blocks of one team on an SM, of which one multiplies while the other waits, or one block if
  // two have no room.
  for (int32_t on_sm = 2 / kTeams; on_sm > 0; --on_sm) {
    const int64_t bytes = std::min(of_sm / on_sm - kReservedBytes, static_cast<int64_t>(most));
    const int32_t blocks = EvenBlocks(units, on_sm * stream.sm_count());
    const Plan plan = MakePlan<Shape, Rings>(units, blocks, a.gated, a.chunks, bytes);
    if (plan.batch == 0) continue;
    // If one more block fitted, an SM that is free first would get another share.
    const auto used = static_cast<size_t>(std::max<int64_t>(plan.bytes, of_sm / (on_sm + 1)));
    LaunchOverlapping(stream, QuantizedGemvKernel<kLayout, kRows, kTeams>,
                      static_cast<unsigned>(blocks), Rings::kThreads, used, a, plan);
    return;
  }
  LC_CHECK(false, "{} bytes of shared memory", most);
}

template <int kLayout>
void LaunchLayout(CudaStream& stream, const Arguments& a, int32_t units) {
  if (SharedMemoryOfBlock() >= kTwoTeamsBytes) {
    if (a.rows == 1) return LaunchRows<kLayout, 1, 2>(stream, a, units);
    if (a.rows == 2) return LaunchRows<kLayout, 2, 2>(stream, a, units);
    if (a.rows <= 4) return LaunchRows<kLayout, 4, 2>(stream, a, units);
    return LaunchRows<kLayout, 8, 2>(stream, a, units);
  }
  if (a.rows == 1) return LaunchRows<kLayout, 1, 1>(stream, a, units);
  if (a.rows <= 4) return LaunchRows<kLayout, 4, 1>(stream, a, units);
  LaunchLayout<kLayout>(stream, RowsOf(a, 0, 4), units);
  LaunchLayout<kLayout>(stream, RowsOf(a, 4, a.rows - 4), units);
}

}  // namespace litecache::ops::cuda::quantized
