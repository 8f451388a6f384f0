// The kernel of tiled_attention_cuda.cu, for each head dimension, each choice of rows, and with or
// without a cap of scores.
#pragma once

#include <algorithm>

#include "device/cuda/check.h"
#include "device/cuda/cuda_device.h"
#include "ops/attention/tiled_tile.cuh"
#include "ops/common/shared_memory.cuh"

namespace litecache::ops::cuda::tiled {

// Writes the blocks that any of a query head's tokens [first, last] keeps. Called by the whole
// block.
__device__ inline void UniteKept(const DeviceKeptBlocks& kept, int32_t q_head, int32_t first,
                                 int32_t last, uint32_t* words) {
  const int32_t begin = first / kept.query_rows, end = last / kept.query_rows;
  for (int32_t w = threadIdx.x; w < kept.words; w += kThreads) {
    uint32_t word = 0;
    for (int32_t block = begin; block <= end; ++block) word |= kept.Of(q_head, block)[w];
    words[w] = word;
  }
  __syncthreads();
}

// The tiles of rows that any of a block's queries attends, in order: those of the sink, and from
// the first query's window on, or those with kept blocks.
template <Rows kRows>
struct AttendedTiles {
  int32_t end;
  int32_t sink_end, window;   // Rows::kWindow: where the sink's end, and the window's begin
  const uint32_t* any_keeps;  // Rows::kKept: bits of the blocks that any of the queries keeps

  // All in rows.
  __device__ __forceinline__ AttendedTiles(int32_t row_end, int32_t sink, int32_t window_begin,
                                           const uint32_t* keeps)
      : end((row_end + kKvRows - 1) / kKvRows),
        sink_end((sink + kKvRows - 1) / kKvRows),
        window(kRows == Rows::kWindow ? max(sink_end, window_begin / kKvRows) : 0),
        any_keeps(keeps) {}

  __device__ __forceinline__ int32_t After(int32_t tile) const {
    ++tile;
    if constexpr (kRows == Rows::kKept) {
      constexpr int kTiles = KeptBlocks::kRows / kKvRows;  // of a block
      while (tile < end && (any_keeps[tile / kTiles / 32] >> tile / kTiles % 32 & 1) == 0) ++tile;
    }
    return kRows == Rows::kWindow && tile >= sink_end ? max(tile, window) : tile;
  }
};

// Columns that no copy writes must be finite numbers. Called by the whole block.
__device__ inline void ClearShared(std::byte* shared, int bytes) {
  for (int i = threadIdx.x * 16; i < bytes; i += kThreads * 16) {
    *reinterpret_cast<int4*>(shared + i) = int4{0, 0, 0, 0};
  }
  __syncthreads();
}

template <int kHeadDim, Rows kRows, bool kCapped>
__global__ void __launch_bounds__(kThreads, kHeadDim <= 128 ? 2 : 1)
    TiledKernel(const __grid_constant__ TiledProblem p) {
  using Shape = TiledShape<kHeadDim>;
  constexpr bool kWindow = kRows == Rows::kWindow, kKept = kRows == Rows::kKept;
  const AttentionArrays& a = p.arrays;
  constexpr int kProducts = Shape::kProducts;
  extern __shared__ __align__(128) std::byte shared[];
  if (static_cast<int32_t>(blockIdx.z) >= *p.step.count) return;
  const StepSequence& sequence = p.step.sequences[blockIdx.z];
  const int32_t head = static_cast<int32_t>(blockIdx.x) / Shape::kParts;
  const int first_value = static_cast<int>(blockIdx.x) % Shape::kParts * Shape::kValues;
  const int32_t tile_of_queries = static_cast<int32_t>(gridDim.y - 1 - blockIdx.y);
  const int32_t first = tile_of_queries * Shape::kQueries;
  const int32_t queries = sequence.rows * a.group;
  if (first >= queries) return;
  const int32_t list_index = p.access.table.list_of_head[kKept ? head / p.group : head];
  if (list_index < 0) return;
  const RowList list = p.access.List(sequence, list_index);
  const bool whole_tiles = !kWindow && list.page_rows % kKvRows == 0;
  const int32_t past = sequence.past, first_row = sequence.first_row;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const auto query_tile = shared;
  const uint32_t stages = SharedAddress(shared + Shape::kQueries * Shape::kQueryBytes);

  if (a.head_dim < kHeadDim) ClearShared(shared, Shape::kBytes);
  // Query i attends rows below past + i / group + 1.
  const int32_t last = min(first + Shape::kQueries, queries) - 1;
  const int32_t end = past + last / a.group + 1;
  const int32_t sink = kWindow ? p.access.table.sink : 0;
  __shared__ uint32_t any_keeps[kKept ? kMostWords : 1];
  if constexpr (kKept) UniteKept(p.kept, head, first, last, any_keeps);
  const AttendedTiles<kRows> tiles(end, sink, past + first / a.group + 1 - p.window, any_keeps);
  const int32_t first_tile = tiles.After(-1);
  // A tile's page address is loaded one tile before its rows.
  const auto address = [&](int32_t tile) -> const std::byte* {
    return whole_tiles && tile < tiles.end ? list.Row(tile * kKvRows) : nullptr;
  };
  const std::byte* ahead = address(first_tile);
  const auto copy = [&](int32_t tile, int32_t stage) {
    CopyTile<kHeadDim>(list, ahead, kWindow ? &p.access : nullptr, tile * kKvRows, end, a.head_dim,
                       first_value, stages + stage % Shape::kStages * Shape::kStageBytes);
    CommitCopies();
    ahead = address(tiles.After(tile));
  };
  copy(first_tile, 0);

  BringQueries<kHeadDim>(a, first_row, head, first, queries, query_tile);

  TiledState<kHeadDim> state;
  Clear<kHeadDim>(&state);
  const int32_t warp_first = first + warp * Shape::kWarpQueries;
  // For the warp: rows that all its queries attend, and rows that any of them attends.
  const int32_t all_see = past + warp_first / a.group + 1;
  const int32_t any_sees = past + min(warp_first + Shape::kWarpQueries - 1, last) / a.group + 1;
  // With a window: where that of the warp's last query begins.
  const int32_t all_from = kWindow ? any_sees - p.window : 0;
  const bool idle = warp_first >= queries;
  const uint32_t* keeps[kProducts][2] = {};  // the lane's query rows' bits
  if constexpr (kKept) {
#pragma unroll
    for (int m = 0; m < kProducts; ++m) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int32_t query = min(warp_first + m * 16 + h * 8 + lane / 4, last);
        keeps[m][h] = p.kept.Of(head, query / p.kept.query_rows);
      }
    }
  }
  const uint32_t own_queries =
      SharedAddress(query_tile) + warp * Shape::kWarpQueries * Shape::kQueryBytes;
  int32_t count = 0;
  for (int32_t tile = first_tile; tile < tiles.end; ++count) {
    WaitForCopies<0>();
    __syncthreads();  // this tile has arrived, and the previous one has been read
    const int32_t after = tiles.After(tile);
    if (Shape::kStages > 1 && after < tiles.end) copy(after, count + 1);
    const int32_t begin = tile * kKvRows;
    const uint32_t stage = stages + count % Shape::kStages * Shape::kStageBytes;
    if (!idle && begin < any_sees) {
      TileLimits<kWindow> limits;
      const int32_t block = begin / KeptBlocks::kRows;
      const auto kept = [&](int m, int h) {
        return !kKept || (keeps[m][h][block / 32] >> block % 32 & 1) != 0;
      };
      bool whole = begin + kKvRows <= all_see && begin >= all_from;
      if constexpr (kKept) {
        bool all_keep = true;
#pragma unroll
        for (int m = 0; m < kProducts; ++m) all_keep = all_keep && kept(m, 0) && kept(m, 1);
        whole = __all_sync(kAll, all_keep) && whole;
      }
      if (whole) {
        AttendTile<kHeadDim, false, kWindow, kCapped>(a, own_queries, stage, limits, &state);
      } else {
        limits.sink = sink - begin;
#pragma unroll
        for (int m = 0; m < kProducts; ++m) {
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            const int32_t query = warp_first + m * 16 + h * 8 + lane / 4;
            limits.below[m][h] = past + query / a.group + 1 - begin;
            limits.from[m][h] = limits.below[m][h] - p.window;
            if (!kept(m, h)) limits.below[m][h] = 0;
          }
        }
        AttendTile<kHeadDim, true, kWindow, kCapped>(a, own_queries, stage, limits, &state);
      }
    }
    if (Shape::kStages == 1 && after < tiles.end) {
      __syncthreads();
      copy(after, count + 1);
    }
    tile = after;
  }
  StoreOutputs<kHeadDim>(a, first_row, head, warp_first, queries, first_value, state);
}

template <int kHeadDim, Rows kRows, bool kCapped>
void Launch(CudaStream& stream, const TiledProblem& problem) {
  using Shape = TiledShape<kHeadDim>;
  const size_t most = AllowSharedMemory(TiledKernel<kHeadDim, kRows, kCapped>);
  LC_CHECK(Shape::kBytes <= most, "a GPU with too little shared memory");
  const int64_t queries = int64_t{problem.step.max_rows} * problem.arrays.group;
  const dim3 grid(
      static_cast<unsigned>(problem.arrays.q_heads / problem.arrays.group * Shape::kParts),
      static_cast<unsigned>((queries + Shape::kQueries - 1) / Shape::kQueries),
      static_cast<unsigned>(problem.step.capacity));
  LC_CHECK(grid.y <= 65535 && grid.z <= 65535, "too many queries in one step");
  TiledKernel<kHeadDim, kRows, kCapped>
      <<<grid, kThreads, Shape::kBytes, stream.handle()>>>(problem);
  LC_CUDA_LAUNCHED();
}

// Attends a chunk. kCapped: with a cap of scores, or without one if head_dim is above 256, which no
// model with a cap has.
template <bool kCapped>
void Attend(Stream& stream, const StepView& step, int64_t kv_heads, const RowTable& table,
            Rows rows, int32_t window, const AttentionOperands& operands) {
  TiledProblem p;
  p.step = step;
  p.access = TableAccess(table);
  p.window = window;
  p.kept = operands.kept;
  LC_CHECK(p.kept.words <= kMostWords, "a context too long for kept blocks");
  p.arrays = AttentionArrays(operands, kv_heads, table.format.head_dim);
  p.group = p.arrays.group;
  if (rows == Rows::kKept) p.arrays.group = 1;
  CudaStream& cuda = AsCuda(stream);
  const auto of_rows = [&]<Rows kRows>() {
    if (p.arrays.head_dim <= 64) {
      Launch<64, kRows, kCapped>(cuda, p);
    } else if (p.arrays.head_dim <= 128) {
      Launch<128, kRows, kCapped>(cuda, p);
    } else if (p.arrays.head_dim <= 256) {
      Launch<256, kRows, kCapped>(cuda, p);
    } else if constexpr (kCapped) {
      Launch<512, kRows, kCapped>(cuda, p);
    }
  };
  if (rows == Rows::kAll) of_rows.template operator()<Rows::kAll>();
  if (rows == Rows::kWindow) of_rows.template operator()<Rows::kWindow>();
  if (rows == Rows::kKept) of_rows.template operator()<Rows::kKept>();
}

// Compiled by tiled_capped_cuda.cu.
extern template void Attend<true>(Stream& stream, const StepView& step, int64_t kv_heads,
                                  const RowTable& table, Rows rows, int32_t window,
                                  const AttentionOperands& operands);

}  // namespace litecache::ops::cuda::tiled
