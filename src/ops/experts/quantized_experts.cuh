// The kernel for products of a few rows with experts' packed blocks. Each block has an even share
// of all units of all tiles of pairs, one tile after the other. A column, every split-th chunk of
// 16 outputs, is one warp's; warps have even shares of the columns of a batch of tiles, because a
// depth may have fewer chunks than a block has warps.
//
// As in quantized/gemv.cuh, each warp keeps its own ring of asynchronous copies full, and
// multiplies one chunk of all its tiles before the next one, so that it loads x's operands once.
// The number of columns, and with it the order of a row's sum, depends on the depth only.
//
// Tiles of one row have blocks of eight warps, of which two share an SM: when one ends, one of the
// next launch begins and fills its rings while the others are at work, so that the product with
// down hardly waits for memory. Tiles of eight rows have one block of 16 warps on an SM, where x is
// once.
#pragma once

#include <algorithm>

#include "ops/common/overlap.cuh"
#include "ops/common/shared_memory.cuh"
#include "ops/common/vectors.cuh"
#include "ops/experts/expert_address.cuh"
#include "ops/experts/quantized_experts_parts.cuh"

namespace litecache::ops::cuda::quantized {

template <typename Shape, int kBlockWarps>
struct ExpertRing {
  static constexpr int kWarps = kBlockWarps;
  static constexpr int kThreads = kWarps * 32;
  static constexpr int kBlocksOfSm = 16 / kWarps;
  // What the rings leave is for x and sums: of one row, these are small.
  static constexpr int kStages =
      std::clamp((kWarps == 8 ? 84 : 128) * 1024 / (kWarps * Shape::kBytes), 2, 6);
  static constexpr int kWarpBytes = kStages * Shape::kBytes;
  static constexpr int kBytes = kWarps * kWarpBytes;
};

// A warp's columns of a batch of tiles: [begin, end) of them all, where the tiles of one column
// are together.
struct ColumnShare {
  int32_t begin, end;
  int32_t column, tile;  // of the first

  __device__ ColumnShare(int32_t tiles, int32_t split, int warp, int warps) {
    const int32_t all = tiles * split;
    begin = warp * all / warps;
    end = (warp + 1) * all / warps;
    column = begin / tiles;
    tile = begin % tiles;
  }
};

// The batches of a block's tiles: none has tiles of 16 outputs of two tiles of pairs.
struct Batch {
  int32_t begin = 0, end = 0;
  int32_t pairs_end;  // where the tile of pairs ends

  // The batch that begins at `end`. step: tiles of 16 outputs of a tile of pairs.
  __device__ __forceinline__ void Next(int32_t most, int32_t step, int32_t tiles) {
    begin = end;
    if (begin == pairs_end) pairs_end += step;
    end = min(min(begin + most, pairs_end), tiles);
  }
};

// The copies of a warp: its chunks in the order in which they are multiplied.
template <typename Shape, typename Ring>
class ExpertCopies {
 public:
  // bases: addresses of the block's tiles; [0, tiles).
  __device__ ExpertCopies(const uint64_t* bases, int32_t tiles, const ExpertPlan& plan,
                          int32_t chunks, int32_t pairs_end, int32_t step, int warp, int lane,
                          uint32_t ring)
      : bases_(bases),
        tiles_(tiles),
        step_(step),
        most_(plan.batch),
        split_(plan.split),
        end_chunk_(chunks * Shape::kBytes),
        warp_(warp),
        lane_(lane),
        end_ring_(ring + static_cast<uint32_t>(Ring::kWarpBytes + lane * 16)),
        to_(ring + static_cast<uint32_t>(lane * 16)) {
    batch_.pairs_end = pairs_end;
    NextBatch();
  }

  // Copies the next chunk; commits a group of copies even if nothing is left.
  __device__ __forceinline__ void Next() {
    if (batch_.begin < tiles_) {
      const auto* const from = reinterpret_cast<const uint8_t*>(
          bases_[batch_.begin + tile_] + static_cast<uint32_t>(chunk_ + lane_ * 16));
      constexpr int kPieces = Shape::kBytes / 16;
#pragma unroll
      for (int i = 0; i < kPieces; i += 32) {
        if (kPieces - i >= 32 || lane_ < kPieces - i) {
          const uint32_t to = to_ + static_cast<uint32_t>(i * 16);
          // Another tile of the same expert may find the weights in the L2 cache.
          Shape::kRows == 1 ? CopyChunkOnce(to, from + i * 16, true)
                            : CopyChunk(to, from + i * 16, true);
        }
      }
      Advance();
    }
    CommitCopies();
  }

 private:
  __device__ __forceinline__ void Advance() {
    to_ += Shape::kBytes;
    if (to_ == end_ring_) to_ -= static_cast<uint32_t>(Ring::kWarpBytes);
    if (++tile_ == batch_.end - batch_.begin) {
      tile_ = 0;
      chunk_ += Shape::kBytes;
    }
    if (--left_ > 0 && chunk_ < end_chunk_) return;
    // The columns' next chunks. If the first has none left, the others have none.
    first_chunk_ += split_ * Shape::kBytes;
    if (first_chunk_ < end_chunk_) {
      chunk_ = first_chunk_;
      tile_ = first_tile_;
      left_ = count_;
    } else {
      NextBatch();
    }
  }

  // The next batch of which the warp has columns, or none.
  __device__ __forceinline__ void NextBatch() {
    do {
      batch_.Next(most_, step_, tiles_);
      if (batch_.begin >= tiles_) return;
      const ColumnShare share(batch_.end - batch_.begin, split_, warp_, Ring::kWarps);
      left_ = count_ = share.end - share.begin;
      tile_ = first_tile_ = share.tile;
      chunk_ = first_chunk_ = share.column * Shape::kBytes;
    } while (count_ == 0);
  }

  const uint64_t* const bases_;
  const int32_t tiles_, step_, most_, split_, end_chunk_;
  const int warp_, lane_;
  const uint32_t end_ring_;
  uint32_t to_;  // the lane's first piece
  Batch batch_;
  int32_t first_tile_ = 0, tile_ = 0;    // in the batch
  int32_t first_chunk_ = 0, chunk_ = 0;  // bytes from the tile's beginning
  int32_t count_ = 0, left_ = 0;         // columns
};

// What a block does: units [first, first + tiles / tiles_of_unit).
struct ExpertShare {
  int32_t first, tiles, tiles_of_unit;

  __device__ ExpertShare(const ExpertArguments& a, int32_t tiles_of_pairs) {
    const auto block = static_cast<int32_t>(blockIdx.x), blocks = static_cast<int32_t>(gridDim.x);
    const int32_t units = tiles_of_pairs * a.units, share = units / blocks, more = units % blocks;
    tiles_of_unit = a.result == ExpertResult::kGated ? 2 : 1;
    first = block * share + min(block, more);
    tiles = (share + (block < more ? 1 : 0)) * tiles_of_unit;
  }
};

// Writes where the block's tiles are, and prefetches their biases.
template <typename Shape>
__device__ void FindBases(const ExpertArguments& a, const ExpertShare& share, uint64_t* bases) {
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < share.tiles;
       i += static_cast<int32_t>(blockDim.x)) {
    const int32_t unit = share.first + i / share.tiles_of_unit;
    const void* const* const weights = a.weights[i % share.tiles_of_unit];
    const int32_t expert = ExpertOf(a, unit / a.units);
    const void* const weight = AddressOf(weights, expert);
    bases[i] = reinterpret_cast<uint64_t>(weight) +
               static_cast<uint64_t>(unit % a.units) *
                   static_cast<uint64_t>(a.product.chunks * Shape::kBytes);
    const float* const biases =
        a.biases[i % share.tiles_of_unit].From(expert, unit % a.units * kRowsOfTile);
    if (biases != nullptr) PrefetchToL2(biases);
  }
}

// Before the kernel before this one has ended: where the experts' weights are does not change.
__device__ inline void PrefetchWeightTables(const ExpertArguments& a) {
  constexpr int kLine = 128 / sizeof(void*);
  for (int32_t i = static_cast<int32_t>(threadIdx.x) * kLine; i < a.count;
       i += static_cast<int32_t>(blockDim.x) * kLine) {
    PrefetchToL2(a.weights[0] + i);
    if (a.result == ExpertResult::kGated) PrefetchToL2(a.weights[1] + i);
  }
}

template <int kLayout, int kRows, int kWarps>
__global__ void __launch_bounds__(kWarps * 32, 16 / kWarps)
    QuantizedExpertsKernel(const __grid_constant__ ExpertArguments a, const ExpertPlan plan) {
  using Shape = ChunkShape<kLayout, kRows>;
  using Shared = ExpertShared<Shape>;
  using Ring = ExpertRing<Shape, kWarps>;
  constexpr int kStages = Ring::kStages;
  extern __shared__ __align__(128) uint8_t shared[];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const uint8_t* const ring = shared + warp * Ring::kWarpBytes;
  auto* const rows = reinterpret_cast<TileRows*>(shared + Ring::kBytes);
  auto* const bases = reinterpret_cast<uint64_t*>(shared + Ring::kBytes + kTileRowsBytes);
  auto* const sums =
      reinterpret_cast<float*>(reinterpret_cast<uint8_t*>(bases) + Shared::TableBytes(plan.tiles));
  float* const x_sums = sums + plan.batch * plan.split * Shape::kTileSums;
  uint8_t* const x = reinterpret_cast<uint8_t*>(x_sums) + Shared::XSumsBytes(plan);
  const int pitch = Shared::Pitch(plan);

  if (!a.early) {
    PrefetchWeightTables(a);
    WaitForKernelBefore();
  }
  const ExpertShare share(a, CountTiles(a));
  const int32_t tiles = share.tiles, step = a.units * share.tiles_of_unit;
  int32_t tile_of_pairs = share.first / a.units;
  Batch batch;
  batch.pairs_end = step - share.first % a.units * share.tiles_of_unit;
  FindBases<Shape>(a, share, bases);
  if (tiles > 0) FindRows<kRows>(a, tile_of_pairs, rows);
  __syncthreads();
  ExpertCopies<Shape, Ring> copies(bases, tiles, plan, a.product.chunks, batch.pairs_end, step,
                                   warp, lane, SharedAddress(ring));
#pragma unroll 1
  for (int i = 0; i < kStages - 1; ++i) copies.Next();
  if (a.early) WaitForKernelBefore();
  // Not before this kernel has waited: the next one may be early.
  LetNextKernelStart();

  constexpr int kGroupsOfChunk = 2 * Shape::kPairs;
  const int32_t most_chunks = (a.product.chunks + plan.split - 1) / plan.split;  // of a column
  const int32_t groups = plan.segment * plan.split * kGroupsOfChunk;  // of x in shared memory
  int stage = 0;
  bool is_new = true;  // the tile of pairs
#pragma unroll 1
  while (batch.end < tiles) {
    if (batch.end == batch.pairs_end) {
      is_new = true;
      FindRows<kRows>(a, ++tile_of_pairs, rows);
    }
    batch.Next(plan.batch, step, tiles);
    const int32_t of_batch = batch.end - batch.begin;
    const ColumnShare columns(of_batch, plan.split, warp, kWarps);
#pragma unroll 1
    for (int32_t from = 0; from < most_chunks; from += plan.segment) {
      if (is_new || plan.segment < most_chunks) {
        const int32_t chunk = from * plan.split;
        const int32_t present = min(plan.segment * plan.split, a.product.chunks - chunk);
        // All warps have read the segment before, and the rows are known.
        __syncthreads();
        StoreTileX<Shape>(a.product, *rows, chunk * kChunkColumns, present * kChunkColumns, groups,
                          pitch, x, x_sums);
        __syncthreads();
      }
#pragma unroll 1
      for (int32_t j = from; j < min(from + plan.segment, most_chunks); ++j) {
        ChunkInputs<Shape> inputs;
        const float* chunk_x_sums = x_sums;
        int32_t column = columns.column, tile = columns.tile;
#pragma unroll 1
        for (int32_t i = columns.begin; i < columns.end; ++i) {
          if (j * plan.split + column >= a.product.chunks) break;
          if (i == columns.begin || tile == 0) {
            const int32_t in_segment = (j - from) * plan.split + column;
            inputs.Load(x + in_segment * kChunkColumns * 2, pitch, lane);
            chunk_x_sums =
                x_sums + (Shape::kGroups == 1
                              ? in_segment * kGroupsOfChunk * Shape::kRows + 2 * (lane % 4)
                              : Shape::RowOf(lane % 4) * groups + in_segment * kGroupsOfChunk);
          }
          WaitForCopies<kStages - 2>();
          // The other lanes' copies are done; all lanes have read the stage that is written next.
          __syncwarp();
          ChunkWords<Shape> words;
          words.Load(ring + stage * Shape::kBytes, lane);
          copies.Next();  // while the loads are in flight
          ChunkSums<Shape> chunk_sums;
          chunk_sums.Multiply(words, inputs, chunk_x_sums, lane);
          StoreSums<Shape>(chunk_sums, j == 0, lane,
                           sums + (tile * plan.split + column) * Shape::kTileSums);
          stage = stage + 1 == kStages ? 0 : stage + 1;
          if (++tile == of_batch) {
            tile = 0;
            ++column;
          }
        }
      }
    }
    is_new = false;
    __syncthreads();
    WriteExpertOutputs<Shape>(a, *rows, sums, plan.split,
                              (share.first + batch.begin / share.tiles_of_unit) % a.units,
                              of_batch / share.tiles_of_unit);
    // The next batch overwrites the sums and the rows.
    __syncthreads();
  }
}

}  // namespace litecache::ops::cuda::quantized
