// The kernel for products of 9 to 64 rows, and of a few times that, with packed blocks: weights
// become bf16 numbers in registers, once for all rows, and multiply x on tensor cores.
//
// A block multiplies eight tiles of 16 outputs with all rows of x. Its warps are two teams of four,
// which divide the steps of a chunk; each warp of a team has two tiles. With fewer tiles warps
// would read x from shared memory more often than there is time for, and with more they would have
// no registers left. Four teams take as long as two, measured. Where shared memory and registers
// allow it, two blocks are on an SM: one multiplies while the other waits.
//
// The blocks of a cluster divide the depth, so that products of few outputs occupy all SMs. At the
// end each adds up a part of the outputs, whose sums it reads from the others' shared memory. Of n
// clusters, each multiplies every n-th block of outputs, and its rings of weights and of x stay
// full from one to the next. Weights come by bulk copies, one for each tile's chunk, which the
// launch overlaps with the kernel before it (overlap.cuh).
#pragma once

#include "ops/common/shared_memory.cuh"
#include "ops/linear/quantized/fragments.cuh"
#include "ops/linear/quantized/gemm_copies.cuh"

namespace litecache::ops::cuda::quantized {

// A warp's sums: of rows g and g + 8 of its tiles with columns 2q and 2q + 1 of eight rows of x.
template <int kColumnTiles>
using WarpSums = float[kTilesOfWarp][kColumnTiles][4];

// Adds the products of a team's steps of a chunk. weights: the warp's first tile; x: the team's
// columns.
template <int kLayout, int kColumnTiles>
__device__ __forceinline__ void MultiplyChunk(const uint8_t* weights, const uint8_t* x, int team,
                                              int lane, WarpSums<kColumnTiles>& sums) {
  using Shape = GemmShape<kLayout, kColumnTiles>;
  Fragments<kLayout, kTeamSteps> fragments[kTilesOfWarp];
#pragma unroll
  for (int tile = 0; tile < kTilesOfWarp; ++tile) {
    fragments[tile].Load(weights + tile * Shape::kChunkBytes, team, lane);
  }
  const uint8_t* const column = x + lane / 4 * Shape::kXPitch + lane % 4 * 8;
#pragma unroll
  for (int step = 0; step < kTeamSteps; ++step) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint2 b[kColumnTiles];
#pragma unroll
      for (int i = 0; i < kColumnTiles; ++i) {
        b[i] = *reinterpret_cast<const uint2*>(column + i * 8 * Shape::kXPitch +
                                               (step * 2 + half) * 32);
      }
#pragma unroll
      for (int tile = 0; tile < kTilesOfWarp; ++tile) {
        uint32_t a[4];
        fragments[tile].Operands(step, half, a);
#pragma unroll
        for (int i = 0; i < kColumnTiles; ++i) MultiplyAdd(sums[tile][i], a, b[i].x, b[i].y);
      }
    }
  }
}

// Stores a warp's sums where its team's are, or adds them there. to: the warp's first tile.
template <typename Shape, int kColumnTiles>
__device__ __forceinline__ void StoreGemmSums(const WarpSums<kColumnTiles>& sums, bool add,
                                              int lane, float* to) {
  const int g = lane / 4, q = lane % 4;
#pragma unroll
  for (int tile = 0; tile < kTilesOfWarp; ++tile) {
#pragma unroll
    for (int i = 0; i < kColumnTiles; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int row = i * 8 + q * 2 + j % 2, output = g + j / 2 * 8;
        float* const at = to + (tile * Shape::kRows + row) * Shape::kSumPitch + output;
        *at = add ? *at + sums[tile][i][j] : sums[tile][i][j];
      }
    }
  }
}

// The cluster's sums of four outputs of a tile, in one order; shared: where each block's sums are.
template <typename Shape>
__device__ __forceinline__ void AddGemmSums(uint32_t shared, int32_t size, int tile, int row,
                                            int quad, float (&total)[4]) {
  const auto at =
      static_cast<uint32_t>(((tile * Shape::kRows + row) * Shape::kSumPitch + quad * 4) * 4);
#pragma unroll 4  // so that several loads are in flight
  for (int32_t rank = 0; rank < size; ++rank) {
#pragma unroll
    for (int team = 0; team < Shape::kSumTeams; ++team) {
      const float4 sum =
          LoadFromBlock(shared + at + static_cast<uint32_t>(team * Shape::kTeamSums * 4), rank);
      total[0] += sum.x, total[1] += sum.y, total[2] += sum.z, total[3] += sum.w;
    }
  }
}

// Four outputs of a row.
struct GemmOutputs {
  const Target& target;
  int64_t at;                          // in y
  int32_t first, count;                // of the target's outputs
  float bias[4] = {}, second[4] = {};  // second: y before, or the bias of target 1

  // Loads what the results need besides the sums.
  __device__ __forceinline__ GemmOutputs(const Arguments& a, const TilePlace& place, int row,
                                         int quad)
      : target(a.targets[place.target]), first(place.tile * kRowsOfTile + quad * 4) {
    count = min(4, target.outputs - first);
    at = row * target.y_stride + first;
    const float* const from = a.gated ? a.targets[1].bias
                              : a.add ? static_cast<const float*>(target.y) + row * target.y_stride
                                      : nullptr;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (target.bias != nullptr && i < count) bias[i] = target.bias[first + i];
      if (from != nullptr && i < count) second[i] = from[first + i];
    }
  }

  __device__ __forceinline__ void Write(const Arguments& a, const float (&sums)[4],
                                        const float (&ups)[4]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i >= count) return;
      float value = sums[i] + bias[i];
      if (a.gated) value = a.function(value, ups[i] + second[i]);
      if (target.bf16_y) {
        static_cast<__nv_bfloat16*>(target.y)[at + i] = __float2bfloat16(value);
      } else {
        static_cast<float*>(target.y)[at + i] = a.add ? second[i] + value : value;
      }
    }
  }
};

// Writes this block's part of the cluster's outputs, of tiles [first, ...).
template <typename Shape>
__device__ __forceinline__ void WriteGemmOutputs(const Arguments& a, int32_t tiles, int32_t first,
                                                 uint32_t sums) {
  const int32_t size = ClusterBlocks(), rank = ClusterRank();
  const int tiles_of_unit = a.gated ? 2 : 1;
  const int units = min(kTilesOfBlock, tiles - first) / tiles_of_unit;
#pragma unroll 1
  for (int i = rank * kGemmThreads + static_cast<int>(threadIdx.x); i < units * a.rows * 4;
       i += size * kGemmThreads) {
    const int quad = i % 4, row = i / 4 % a.rows, tile = i / 4 / a.rows * tiles_of_unit;
    const GemmOutputs outputs(a, FindTile(a, first + tile), row, quad);
    float sum[4] = {}, up[4] = {};
    AddGemmSums<Shape>(sums, size, tile, row, quad, sum);
    if (a.gated) AddGemmSums<Shape>(sums, size, tile + 1, row, quad, up);
    outputs.Write(a, sum, up);
  }
}

template <int kLayout, int kColumnTiles>
__global__ void __launch_bounds__(kGemmThreads, GemmShape<kLayout, kColumnTiles>::kBlocks)
    QuantizedGemmKernel(const __grid_constant__ Arguments a, const GemmPlan plan) {
  using Shape = GemmShape<kLayout, kColumnTiles>;
  extern __shared__ __align__(128) uint8_t shared[];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int team = warp / kTeamWarps;
  const GemmShare share(plan, a.chunks);
  const bool alone = ClusterBlocks() == 1;
  auto* const sums_at = reinterpret_cast<float*>(shared + Shape::kBarrierBytes);
  const uint8_t* const x_at = shared + Shape::kXAt;
  const uint8_t* const weights_at = shared + Shape::kWeightsAt;

  const int of_team = warp % kTeamWarps, tile = of_team * kTilesOfWarp;
  const uint32_t barriers = SharedAddress(shared) + static_cast<uint32_t>(of_team * 8);
  WeightCopies<Shape> copies(
      plan, share, of_team, barriers,
      SharedAddress(weights_at) + static_cast<uint32_t>(tile * Shape::kChunkBytes));
  const bool copies_weights = team == 0 && lane == 0;
  if (copies_weights) {
#pragma unroll 1
    for (int i = 0; i < Shape::kStages; ++i) {
      InitBarrier(barriers + static_cast<uint32_t>(i * kTeamWarps * 8));
    }
    BeforeRuns();
#pragma unroll 1
    for (int i = 0; i < Shape::kStages - 1; ++i) copies.Next(a);
  }
  // The barriers are there.
  __syncthreads();
  WaitForKernelBefore();
  XCopies<Shape> x_copies(a, share, warp, lane, SharedAddress(x_at));
#pragma unroll 1
  for (int i = 0; i < Shape::kXStages - 1; ++i) x_copies.Next(a);

  int stage = 0, x_stage = 0;
  uint32_t parity = 0;
#pragma unroll 1
  for (int32_t round = 0; round < share.rounds; ++round) {
    WarpSums<kColumnTiles> sums = {};
#pragma unroll 1
    for (int32_t chunk = share.begin; chunk < share.end; ++chunk) {
      WaitForCopies<Shape::kXStages - 2>();
      WaitForRuns(barriers + static_cast<uint32_t>(stage * kTeamWarps * 8), parity);
      // All threads' copies are done, and all have read the stages that are written next.
      __syncthreads();
      x_copies.Next(a);
      if (copies_weights) copies.Next(a);
      MultiplyChunk<kLayout, kColumnTiles>(
          weights_at + stage * Shape::kWeightBytes + tile * Shape::kChunkBytes,
          x_at + x_stage * Shape::kXBytes + team * kTeamSteps * 64, team, lane, sums);
      x_stage = x_stage + 1 == Shape::kXStages ? 0 : x_stage + 1;
      if (++stage == Shape::kStages) {
        stage = 0;
        parity ^= 1;
      }
    }
    // The cluster has read the sums of the round before; of a single block, all threads have that
    // have been at the barrier above.
    if (round > 0 && !alone) WaitForCluster();
    float* const own = sums_at + team % Shape::kSumTeams * Shape::kTeamSums +
                       tile * Shape::kRows * Shape::kSumPitch;
    if (team >= Shape::kSumTeams) StoreGemmSums<Shape, kColumnTiles>(sums, false, lane, own);
    if constexpr (kGemmTeams > Shape::kSumTeams) __syncthreads();
    if (team < Shape::kSumTeams) {
      StoreGemmSums<Shape, kColumnTiles>(sums, kGemmTeams > Shape::kSumTeams, lane, own);
    }
    if (alone) {
      __syncthreads();
    } else {
      ArriveAtCluster();
      WaitForCluster();
    }
    WriteGemmOutputs<Shape>(a, plan.tiles, (share.first + round * share.clusters) * kTilesOfBlock,
                            SharedAddress(sums_at));
    if (!alone) ArriveAfterReading();
  }
  // No block ends while others read its sums.
  if (!alone) WaitForCluster();
}

}  // namespace litecache::ops::cuda::quantized
