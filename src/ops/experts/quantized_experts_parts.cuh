// The arguments of products of experts with packed blocks, and the phases of their kernel
// (quantized_experts.cuh) besides the products: the rows of a tile, their x, and the outputs.
#pragma once

#include <cstdint>

#include "ops/experts/expert_biases_cuda.h"
#include "ops/experts/expert_lists_cuda.h"
#include "ops/linear/quantized/parts.cuh"

namespace litecache::ops::cuda::quantized {

// What becomes of a product. The last two are a gated product in two launches.
enum class ExpertResult : int32_t {
  kStored,
  kGated,     // function(the product, the product with the second weights)
  kFunction,  // the function's factor of the gate
  kTimes,     // what y has * the function's factor of the product
};

// A unit is 16 outputs of a tile of pairs; of a gated product, of both weights.
struct ExpertArguments {
  Arguments product;                   // without targets; its rows are those of x
  int32_t divisor = 1;                 // pair p multiplies row p / divisor of x
  const int32_t* experts = nullptr;    // of the pairs
  ExpertLists lists;                   // without an order, tile t is pair t
  const void* const* weights[2] = {};  // of the experts
  ExpertBiases biases[2];              // of the products with them
  int32_t count = 0;                   // of experts
  int32_t outputs = 0;                 // of an expert
  int32_t units = 0;                   // of a tile of pairs
  void* y = nullptr;                   // [pairs, outputs]
  int64_t y_stride = 0;
  bool bf16_y = false;
  ExpertResult result = ExpertResult::kStored;
  // The tiles and their experts were there before the kernel before this one let it start.
  bool early = false;
};

// Defined in quantized_experts_launch.cuh and compiled for every layout by
// quantized_experts_small_cuda.cu and quantized_experts_large_cuda.cu.
template <int kLayout>
void LaunchExpertsLayout(CudaStream& stream, const ExpertArguments& a);

// A column is every split-th chunk of a tile of 16 outputs: sums of one warp.
struct ExpertPlan {
  int32_t split = 1;    // columns of a tile
  int32_t tiles = 0;    // of a block, at most
  int32_t batch = 0;    // tiles whose sums are in shared memory at a time
  int32_t segment = 0;  // chunks of each column whose x is in shared memory at a time
  int32_t bytes = 0;    // of shared memory
};

// The pairs of a block's present tile, in shared memory.
struct TileRows {
  int32_t expert, count;
  int32_t pair[8];
  int32_t x_row[8];  // those beyond the count are not in x
};
// So that what follows is aligned.
constexpr int kTileRowsBytes = (sizeof(TileRows) + 15) / 16 * 16;

// Shared memory after the rings: the tile's rows, where a block's tiles are, sums, sums of x, x.
template <typename Shape>
struct ExpertShared {
  __host__ __device__ static int32_t TableBytes(int32_t tiles) { return (tiles + 1) / 2 * 2 * 8; }
  __host__ __device__ static int32_t TileBytes(const ExpertPlan& plan) {
    return plan.split * Shape::kTileSums * 4;
  }
  // Bytes of a row of x: the rows of a column of lanes must be in different banks.
  __host__ __device__ static int32_t Pitch(const ExpertPlan& plan) {
    return plan.segment * plan.split * kChunkColumns * 2 + 64;
  }
  __host__ __device__ static int32_t XSumsBytes(const ExpertPlan& plan) {
    if (!Shape::kPacked.minimum) return 0;
    return Shape::kRows * plan.segment * plan.split * 2 * Shape::kPairs * 4;
  }
  __host__ __device__ static int32_t XBytes(const ExpertPlan& plan) {
    return Shape::kRows * Pitch(plan) + XSumsBytes(plan);
  }
};

// The tiles and their experts are read past the L1 cache, which may have lines that are older than
// the kernel that wrote them, if this one has not waited for any (ExpertArguments::early).
__device__ inline int32_t ExpertOf(const ExpertArguments& a, int32_t tile) {
  if (a.lists.order == nullptr) return __ldcg(a.experts + tile);
  return __ldcg(&a.lists.tiles[tile].expert);
}

// The number of tiles that have pairs, in all threads of the block.
__device__ inline int32_t CountTiles(const ExpertArguments& a) {
  const bool listed = a.lists.order != nullptr;
  if (!listed && !a.lists.leading) return a.lists.most_tiles;
  int32_t count = 0;
#pragma unroll 1
  for (int32_t first = 0; first < a.lists.most_tiles; first += static_cast<int32_t>(blockDim.x)) {
    const int32_t tile = first + static_cast<int32_t>(threadIdx.x);
    const bool present =
        tile < a.lists.most_tiles && (listed ? __ldcg(&a.lists.tiles[tile].count) > 0
                                             : __ldcg(a.experts + tile) != Routing::kElsewhere);
    count += __syncthreads_count(present ? 1 : 0);
  }
  return count;
}

template <int kRows>
__device__ void FindRows(const ExpertArguments& a, int32_t tile, TileRows* rows) {
  const int i = static_cast<int>(threadIdx.x);
  if (i >= kRows) return;
  int32_t count = 1, pair = tile;
  if (a.lists.order != nullptr) {
    const ExpertTile* const listed = a.lists.tiles + tile;
    count = __ldcg(&listed->count);
    if (i < count) pair = __ldcg(a.lists.order + __ldcg(&listed->first) + i);
  }
  rows->pair[i] = pair;
  rows->x_row[i] = i < count ? pair / a.divisor : a.product.rows;
  if (i == 0) {
    rows->expert = ExpertOf(a, tile);
    rows->count = count;
  }
}

// Columns [first, first + columns) of the tile's rows of x to shared memory, as StoreX does.
template <typename Shape>
__device__ void StoreTileX(const Arguments& a, const TileRows& rows, int32_t first, int32_t columns,
                           int32_t groups, int pitch, uint8_t* x, float* x_sums) {
  constexpr int kLanes = Shape::kPacked.group / 8;  // that have a group
#pragma unroll 1
  for (int32_t piece = static_cast<int32_t>(threadIdx.x); piece < columns / 8;
       piece += static_cast<int32_t>(blockDim.x)) {
    const int half = piece % 4 / 2, q = piece % 2 * 2;
    uint8_t* const to = x + piece / 4 * 64 + q * 16 + half * 8;
    uint4 in[Shape::kRows];
#pragma unroll
    for (int i = 0; i < Shape::kRows; ++i) in[i] = LoadX(a, rows.x_row[i], first + piece * 8);
#pragma unroll
    for (int i = 0; i < Shape::kRows; ++i) {
      uint8_t* const row = to + i * pitch;
      *reinterpret_cast<uint2*>(row) = {in[i].x, in[i].y};
      *reinterpret_cast<uint2*>(row + 16) = {in[i].z, in[i].w};
      if constexpr (Shape::kPacked.minimum) {
        const float sum = GroupSum<kLanes>(in[i]);
        if (piece % kLanes == 0) x_sums[XSumAt<Shape>(i, piece / kLanes, groups)] = sum;
      }
    }
  }
}

// A tile's columns, added up.
template <typename Shape>
__device__ float AddColumns(const float* sums, int split, int tile, int row, int output) {
  const float* const at = sums + tile * split * Shape::kTileSums + SumAt<Shape>(row, output);
  float value = 0;
  for (int i = 0; i < split; ++i) value += at[i * Shape::kTileSums];
  return value;
}

// Writes the outputs of a batch: of units [first, first + count) of the present tile of pairs.
template <typename Shape>
__device__ void WriteExpertOutputs(const ExpertArguments& a, const TileRows& rows,
                                   const float* sums, int split, int32_t first, int32_t count) {
  const int tiles_of_unit = a.result == ExpertResult::kGated ? 2 : 1;
  const int of_unit = rows.count * kRowsOfTile;
  const GateFunction& function = a.product.function;
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < count * of_unit;
       i += static_cast<int32_t>(blockDim.x)) {
    const int32_t unit = i / of_unit;
    const int column = i % kRowsOfTile, row = i % of_unit / kRowsOfTile;
    const int32_t output = (first + unit) * kRowsOfTile + column;
    if (output >= a.outputs) continue;
    const int tile = unit * tiles_of_unit;
    const auto product = [&](int m) {
      return AddColumns<Shape>(sums, split, tile + m, row, column) +
             a.biases[m].At(rows.expert, output);
    };
    float value = product(0);
    const int64_t at = rows.pair[row] * a.y_stride + output;
    auto* const bf16_y = static_cast<__nv_bfloat16*>(a.y) + at;
    auto* const f32_y = static_cast<float*>(a.y) + at;
    if (a.result == ExpertResult::kGated) {
      value = function(value, product(1));
    } else if (a.result == ExpertResult::kFunction) {
      value = function.Gate(value);
    } else if (a.result == ExpertResult::kTimes) {
      value = function.Up(value) * (a.bf16_y ? __bfloat162float(*bf16_y) : *f32_y);
    }
    if (a.bf16_y) {
      *bf16_y = __float2bfloat16(value);
    } else {
      *f32_y = value;
    }
  }
}

}  // namespace litecache::ops::cuda::quantized
