// What the kernel for 9 and more rows (gemm.cuh) has in shared memory, and its copies
// there.
#pragma once

#include <algorithm>

#include "ops/common/bulk_copies.cuh"
#include "ops/common/overlap.cuh"
#include "ops/common/tensor_core.cuh"
#include "ops/common/thread_block_clusters.cuh"
#include "ops/linear/quantized/parts.cuh"

namespace litecache::ops::cuda::quantized {

constexpr int kTilesOfBlock = 8;
constexpr int kTilesOfWarp = 2;
constexpr int kTeamWarps = kTilesOfBlock / kTilesOfWarp;  // warps
constexpr int kGemmTeams = 2;
constexpr int kGemmWarps = kTeamWarps * kGemmTeams;
constexpr int kGemmThreads = kGemmWarps * 32;
constexpr int kTeamSteps = kChunkSteps / kGemmTeams;
// Shared memory of the only block on an SM, and of each of two.
constexpr int kWholeBytes = 224 * 1024, kHalfBytes = 112 * 1024;

// kColumnTiles: eights of rows of x.
template <int kLayout, int kColumnTiles>
struct GemmShape {
  static constexpr int kRows = kColumnTiles * 8;
  static constexpr int kChunkBytes = kPackedLayouts[kLayout].Bytes();
  // Shared memory: barriers; sums of one or both teams [tile][row][16 outputs]; x; weights. Rows of
  // x and sums are padded so that a warp's accesses are in different banks.
  static constexpr int kBarrierBytes = 256;
  static constexpr int kSumPitch = 20;
  static constexpr int kTeamSums = kTilesOfBlock * kRows * kSumPitch;
  static constexpr int kXPitch = kChunkColumns * 2 + 32;
  static constexpr int kXBytes = kRows * kXPitch;                   // of a stage
  static constexpr int kWeightBytes = kTilesOfBlock * kChunkBytes;  // of a stage
  // Blocks on an SM: two, if there is room for them and their registers. One block waits at its
  // barrier, for shared memory and for the tensor cores by turns, as all its warps are in the same
  // phase: on an H200 a chunk with 16 rows takes 0.94 us alone, and two take 1.7 us together.
  static constexpr int kBlocks =
      kColumnTiles <= 4 &&
              kBarrierBytes + kTeamSums * 4 + 2 * (kXBytes + kWeightBytes) <= kHalfBytes
          ? 2
          : 1;
  static constexpr int kSharedBytes = kBlocks == 2 ? kHalfBytes : kWholeBytes;
  static constexpr int kSumTeams =  // whose sums are apart
      kBarrierBytes + 2 * kTeamSums * 4 + 3 * (kXBytes + kWeightBytes) <= kSharedBytes ? 2 : 1;
  static constexpr int kSumBytes = kSumTeams * kTeamSums * 4;
  static constexpr int kRingBytes = kSharedBytes - kBarrierBytes - kSumBytes;
  // x comes from the L2 cache, and weights from memory, which takes longer.
  static constexpr int kXStages = (kRingBytes - 3 * kXBytes) / kWeightBytes >= 3 ? 3 : 2;
  static constexpr int kStages = std::min((kRingBytes - kXStages * kXBytes) / kWeightBytes, 6);
  static_assert(kStages >= 2 && kStages * kTeamWarps * 8 <= kBarrierBytes);
  static constexpr int kXAt = kBarrierBytes + kSumBytes;
  static constexpr int kWeightsAt = kXAt + kXStages * kXBytes;
  static constexpr int kUsedBytes = kWeightsAt + kStages * kWeightBytes;
};

struct GemmPlan {
  int32_t tiles;   // of 16 outputs; a gated product's alternate
  int32_t blocks;  // of eight tiles
};

// Which products a block makes: chunks [begin, end) of every `clusters`th block of tiles.
struct GemmShare {
  int32_t first, clusters, rounds, begin, end;

  __device__ GemmShare(const GemmPlan& plan, int32_t chunks) {
    const int32_t size = ClusterBlocks(), rank = ClusterRank();
    first = static_cast<int32_t>(blockIdx.x) / size;
    clusters = static_cast<int32_t>(gridDim.x) / size;
    rounds = (plan.blocks - first + clusters - 1) / clusters;
    begin = rank * chunks / size;
    end = (rank + 1) * chunks / size;
  }
};

// The copies of a warp's weights, by one lane. A barrier for each stage and warp of a team.
template <typename Shape>
class WeightCopies {
 public:
  // warp: of its team; barriers, ring: its own in stage 0.
  __device__ WeightCopies(const GemmPlan& plan, const GemmShare& share, int warp, uint32_t barriers,
                          uint32_t ring)
      : tiles_(plan.tiles),
        share_(share),
        barriers_(barriers),
        ring_(ring),
        left_(share.rounds * (share.end - share.begin)),
        tile_(share.first * kTilesOfBlock + warp * kTilesOfWarp),
        chunk_(share.begin) {}

  // Copies the next chunk of the warp's tiles that exist.
  __device__ __forceinline__ void Next(const Arguments& a) {
    if (left_ == 0) return;
    if (chunk_ == share_.begin) FindTiles(a);
    const uint32_t barrier = barriers_ + static_cast<uint32_t>(stage_ * kTeamWarps * 8);
    const uint32_t to = ring_ + static_cast<uint32_t>(stage_ * Shape::kWeightBytes);
    ExpectBytes(barrier, static_cast<uint32_t>(present_ * Shape::kChunkBytes));
#pragma unroll
    for (int i = 0; i < kTilesOfWarp; ++i) {
      if (i < present_) {
        CopyRun(to + static_cast<uint32_t>(i * Shape::kChunkBytes), from_[i], Shape::kChunkBytes,
                barrier);
      }
      from_[i] += Shape::kChunkBytes;
    }
    stage_ = stage_ + 1 == Shape::kStages ? 0 : stage_ + 1;
    if (++chunk_ == share_.end) {
      chunk_ = share_.begin;
      tile_ += share_.clusters * kTilesOfBlock;
    }
    if (--left_ == 0) LetNextKernelStart();
  }

 private:
  __device__ __forceinline__ void FindTiles(const Arguments& a) {
    present_ = max(0, min(kTilesOfWarp, tiles_ - tile_));
#pragma unroll
    for (int i = 0; i < kTilesOfWarp; ++i) {
      if (i >= present_) break;
      const TilePlace place = FindTile(a, tile_ + i);
      from_[i] = a.targets[place.target].weight +
                 (int64_t{place.tile} * a.chunks + share_.begin) * Shape::kChunkBytes;
    }
  }

  const int32_t tiles_;
  const GemmShare& share_;
  const uint32_t barriers_, ring_;
  int32_t left_, tile_, chunk_;
  int stage_ = 0, present_ = 0;
  const uint8_t* from_[kTilesOfWarp] = {};
};

// The copies of x by all threads: of every eighth row, the lane's eight columns.
template <typename Shape>
class XCopies {
 public:
  __device__ XCopies(const Arguments& a, const GemmShare& share, int warp, int lane, uint32_t ring)
      : ring_(ring + static_cast<uint32_t>(warp * Shape::kXPitch + lane * 16)),
        to_(ring_),
        rows_((a.rows - warp + kGemmWarps - 1) / kGemmWarps),
        left_(share.rounds * (share.end - share.begin)),
        begin_(share.begin * kChunkColumns + lane * 8),
        end_(share.end * kChunkColumns),
        column_(begin_),
        from_(a.x + warp * a.x_stride),
        step_(kGemmWarps * a.x_stride) {}

  // Copies the next chunk, with zeros beyond the depth; commits a group of copies even if nothing
  // is left. Rows that x does not have stay as they are in shared memory: they affect no others.
  __device__ __forceinline__ void Next(const Arguments& a) {
    if (left_ > 0) {
      const bool present = column_ < a.depth;
      const __nv_bfloat16* from = from_ + (present ? column_ : 0);
#pragma unroll
      for (int i = 0; i < Shape::kRows / kGemmWarps; ++i) {
        if (i < rows_) {
          CopyChunk(to_ + static_cast<uint32_t>(i * kGemmWarps * Shape::kXPitch), from, present);
        }
        from += step_;
      }
      to_ += Shape::kXBytes;
      if (to_ >= ring_ + Shape::kXStages * Shape::kXBytes) to_ = ring_;
      column_ += kChunkColumns;
      if (column_ >= end_) column_ = begin_;
      --left_;
    }
    CommitCopies();
  }

 private:
  const uint32_t ring_;
  uint32_t to_;
  const int rows_;
  int32_t left_;
  const int32_t begin_, end_;
  int32_t column_;
  const __nv_bfloat16* const from_;
  const int64_t step_;
};

}  // namespace litecache::ops::cuda::quantized
