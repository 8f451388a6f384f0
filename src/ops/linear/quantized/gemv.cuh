// The kernel for products of few rows with packed blocks. Each block has an even share of all
// tiles of 16 outputs. Eight warps divide a tile's chunks: warp w has chunks w, w + 8, ...
// Each warp keeps its own ring of asynchronous copies full.
//
// A warp multiplies a chunk of all its tiles before the next one, so that it loads x's operands
// once for each chunk, not for each tile: with 8 rows they are twice as many bytes as the weights.
// The sums of several tiles are therefore in shared memory, where warps add to their own;
// at the end of a batch of tiles all threads add up the warps' sums.
//
// With two teams of eight warps, for every other tile, a block occupies an SM, and x is there once.
// With one, a block takes at most the 99 KiB of shared memory that any GPU has for one, and two
// share an SM that has more. On an H200 that takes as long with one row of x and 4-bit weights, and
// a tenth longer with four rows.
//
// The launch overlaps the kernel before it (overlap.cuh): rings fill while that kernel ends.
#pragma once

#include <algorithm>

#include "ops/common/overlap.cuh"
#include "ops/common/shared_memory.cuh"
#include "ops/linear/quantized/parts.cuh"

namespace litecache::ops::cuda::quantized {

// Stages of a warp's ring. What the rings leave is for x and sums.
constexpr int StagesFor(int teams, int rows, int chunk_bytes) {
  const int bytes = (teams == 1 ? 56 : rows <= 2 ? 160 : 128) * 1024;
  return std::clamp(bytes / (teams * kSplit * chunk_bytes), 2, 6);
}

template <typename Shape, int kTeams>
struct Ring {
  static constexpr int kWarps = kTeams * kSplit;
  static constexpr int kThreads = kWarps * 32;
  static constexpr int kStages = StagesFor(kTeams, Shape::kRows, Shape::kBytes);
  static constexpr int kWarpBytes = kStages * Shape::kBytes;
  static constexpr int kBytes = kWarps * kWarpBytes;
};

// The copies of a warp: its chunks of its team's tiles, in the order in which they are multiplied.
template <typename Shape, int kTeams>
class RingCopies {
 public:
  // bases: addresses of the block's tiles; [0, tiles).
  __device__ RingCopies(const uint64_t* bases, int32_t tiles, int32_t batch, int32_t chunks,
                        int team, int split, int lane, uint32_t ring)
      : bases_(bases),
        tiles_(tiles),
        batch_(batch),
        lane_(lane),
        begin_(ring),
        to_(ring),
        first_chunk_(split * Shape::kBytes),
        end_chunk_(chunks * Shape::kBytes),
        chunk_(first_chunk_),
        first_tile_(team),
        tile_(first_chunk_ < end_chunk_ ? team : tiles),
        end_tile_(min(batch, tiles)) {}

  // Copies the next chunk; commits a group of copies even if nothing is left.
  __device__ __forceinline__ void Next() {
    if (tile_ < tiles_) {
      const auto* const from = reinterpret_cast<const uint8_t*>(bases_[tile_]) + chunk_;
      constexpr int kPieces = Shape::kBytes / 16;
#pragma unroll
      for (int i = 0; i < kPieces; i += 32) {
        if (kPieces - i >= 32 || lane_ < kPieces - i) {
          const int at = (i + lane_) * 16;
          CopyChunkOnce(to_ + static_cast<uint32_t>(at), from + at, true);
        }
      }
      Advance();
    }
    CommitCopies();
  }

 private:
  __device__ __forceinline__ void Advance() {
    to_ += Shape::kBytes;
    if (to_ == begin_ + Ring<Shape, kTeams>::kWarpBytes) to_ = begin_;
    tile_ += kTeams;
    if (tile_ < end_tile_) return;
    tile_ = first_tile_;
    chunk_ += kSplit * Shape::kBytes;
    if (chunk_ < end_chunk_) return;
    chunk_ = first_chunk_;
    first_tile_ += batch_;
    tile_ = first_tile_;
    end_tile_ = min(end_tile_ + batch_, tiles_);
    if (tile_ >= tiles_) LetNextKernelStart();
  }

  const uint64_t* const bases_;
  const int32_t tiles_, batch_, lane_;
  const uint32_t begin_;
  uint32_t to_;
  const int32_t first_chunk_, end_chunk_;
  int32_t chunk_;  // bytes from the tile's beginning
  int32_t first_tile_, tile_, end_tile_;
};

template <int kLayout, int kRows, int kTeams>
__global__ void __launch_bounds__(Ring<ChunkShape<kLayout, kRows>, kTeams>::kThreads, 2 / kTeams)
    QuantizedGemvKernel(const __grid_constant__ Arguments a, const Plan plan) {
  using Shape = ChunkShape<kLayout, kRows>;
  using Parts = SharedParts<Shape>;
  using Rings = Ring<Shape, kTeams>;
  constexpr int kStages = Rings::kStages;
  extern __shared__ __align__(128) uint8_t shared[];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int team = warp / kSplit, split = warp % kSplit;

  const int32_t block = static_cast<int32_t>(blockIdx.x), units = a.gated ? 2 : 1;
  const int32_t first = (block * plan.share + min(block, plan.more)) * units;
  const int32_t tiles = (plan.share + (block < plan.more ? 1 : 0)) * units;
  const uint8_t* const ring = shared + warp * Rings::kWarpBytes;
  auto* const bases = reinterpret_cast<uint64_t*>(shared + Rings::kBytes);
  auto* const sums = reinterpret_cast<float*>(bases + (tiles + 1) / 2 * 2);
  float* const x_sums = sums + plan.batch * kSplit * Shape::kTileSums;
  uint8_t* const x = reinterpret_cast<uint8_t*>(x_sums) + Parts::XSumsBytes(plan.segment);
  const int pitch = Parts::Pitch(plan.segment);

  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < tiles; i += Rings::kThreads) {
    const TilePlace place = FindTile(a, first + i);
    bases[i] = reinterpret_cast<uint64_t>(a.targets[place.target].weight +
                                          int64_t{place.tile} * a.chunks * Shape::kBytes);
  }
  __syncthreads();
  RingCopies<Shape, kTeams> copies(bases, tiles, plan.batch, a.chunks, team, split, lane,
                                   SharedAddress(ring));
#pragma unroll 1
  for (int i = 0; i < kStages - 1; ++i) copies.Next();
  WaitForKernelBefore();

  constexpr int kGroupsOfChunk = 2 * Shape::kPairs;
  const int32_t own_chunks = (a.chunks - split + kSplit - 1) / kSplit;
  const int32_t most_chunks = (a.chunks + kSplit - 1) / kSplit;
  const int32_t groups = plan.segment * kSplit * kGroupsOfChunk;  // of x in shared memory
  int stage = 0;
#pragma unroll 1
  for (int32_t begin = 0; begin < tiles; begin += plan.batch) {
    const int32_t end = min(begin + plan.batch, tiles);
#pragma unroll 1
    for (int32_t from = 0; from < most_chunks; from += plan.segment) {
      if (begin == 0 || plan.segment < most_chunks) {
        const int32_t chunk = from * kSplit;
        const int32_t columns = min(plan.segment * kSplit, a.chunks - chunk) * kChunkColumns;
        // All warps have read the segment before.
        __syncthreads();
        StoreX<Shape>(a, chunk * kChunkColumns, columns, groups, pitch, x, x_sums);
        __syncthreads();
      }
#pragma unroll 1
      for (int32_t j = from; j < min(from + plan.segment, own_chunks); ++j) {
        const int32_t in_segment = (j - from) * kSplit + split;
        ChunkInputs<Shape> inputs;
        inputs.Load(x + in_segment * kChunkColumns * 2, pitch, lane);
        const float* const chunk_x_sums =
            x_sums + (Shape::kGroups == 1
                          ? in_segment * kGroupsOfChunk * Shape::kRows + 2 * (lane % 4)
                          : Shape::RowOf(lane % 4) * groups + in_segment * kGroupsOfChunk);
#pragma unroll 1
        for (int32_t tile = begin + team; tile < end; tile += kTeams) {
          WaitForCopies<kStages - 2>();
          // The other lanes' copies are done; all lanes have read the stage that is written next.
          __syncwarp();
          ChunkWords<Shape> words;
          words.Load(ring + stage * Shape::kBytes, lane);
          copies.Next();  // while the loads are in flight
          ChunkSums<Shape> chunk_sums;
          chunk_sums.Multiply(words, inputs, chunk_x_sums, lane);
          StoreSums<Shape>(chunk_sums, j == 0, lane,
                           sums + ((tile - begin) * kSplit + split) * Shape::kTileSums);
          stage = stage + 1 == kStages ? 0 : stage + 1;
        }
      }
    }
    __syncthreads();
    WriteOutputs<Shape>(a, sums, first + begin, end - begin);
    // The next batch overwrites the sums.
    __syncthreads();
  }
}

}  // namespace litecache::ops::cuda::quantized
