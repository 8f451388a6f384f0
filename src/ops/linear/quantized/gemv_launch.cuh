// Launches the quantized GEMV: one .cu file instantiates a few layouts, because each takes a while
// to compile.
#pragma once

#include <algorithm>

#include "ops/linear/quantized/gemv.cuh"

namespace litecache::ops::cuda::quantized {

// The batch of tiles and the segment of x that fit into `bytes` of shared memory. All of x, if it
// fits with sums for two tiles: reading x again takes longer than adding up more often.
template <typename Shape>
Plan MakePlan(int32_t units, int32_t blocks, bool gated, int32_t chunks, int64_t bytes) {
  using Parts = SharedParts<Shape>;
  constexpr int32_t kLeastBatch = 2, kMostBatch = 64;  // even: for two teams, or pairs of tiles
  Plan plan{.share = units / blocks, .more = units % blocks};
  const int32_t tiles = (plan.share + (plan.more > 0 ? 1 : 0)) * (gated ? 2 : 1);
  bytes -= (tiles + 1) / 2 * 2 * int64_t{8};
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
  plan.batch = most_batch(plan.segment);
  LC_CHECK(plan.batch >= kLeastBatch, "{} bytes of shared memory", bytes);
  return plan;
}

template <int kLayout, int kRows>
void LaunchRows(CudaStream& stream, const Arguments& a, int32_t units) {
  using Shape = ChunkShape<kLayout, kRows>;
  using Parts = SharedParts<Shape>;
  static const size_t most = AllowSharedMemory(&QuantizedGemvKernel<kLayout, kRows>);
  constexpr int64_t kRings = int64_t{Ring<Shape>::kWarps} * Ring<Shape>::kWarpBytes;
  const int32_t blocks = std::min(units, stream.sm_count());
  const Plan plan =
      MakePlan<Shape>(units, blocks, a.gated, a.chunks, static_cast<int64_t>(most) - kRings);
  const int32_t tiles = (plan.share + (plan.more > 0 ? 1 : 0)) * (a.gated ? 2 : 1);
  const int64_t used = kRings + (tiles + 1) / 2 * 2 * int64_t{8} +
                       int64_t{plan.batch} * Parts::kTileBytes + Parts::XBytes(plan.segment);
  // More than half of an SM's shared memory: if two blocks fitted, an SM that is free first would
  // get two shares.
  const size_t bytes = std::max(static_cast<size_t>(used), most / 2 + 1024);
  LC_CHECK(bytes <= most);
  LaunchOverlapping(stream, QuantizedGemvKernel<kLayout, kRows>, static_cast<unsigned>(blocks),
                    Ring<Shape>::kThreads, bytes, a, plan);
}

template <int kLayout>
void LaunchLayout(CudaStream& stream, const Arguments& a, int32_t units) {
  if (a.rows == 1) return LaunchRows<kLayout, 1>(stream, a, units);
  if (a.rows == 2) return LaunchRows<kLayout, 2>(stream, a, units);
  if (a.rows <= 4) return LaunchRows<kLayout, 4>(stream, a, units);
  LaunchRows<kLayout, 8>(stream, a, units);
}

}  // namespace litecache::ops::cuda::quantized
