// The quantized GEMV's arguments, and the phases of its kernel (gemv.cuh) besides the
// products: x, and the outputs.
#pragma once

#include <cstdint>

#include "ops/linear/gemv_cuda.h"
#include "ops/linear/quantized/tiles.cuh"

namespace litecache::ops::cuda::quantized {

// Warps that divide a tile's chunks.
constexpr int kSplit = 8;
constexpr int kRowsOfTile = 16;

struct Target {
  const uint8_t* weight;
  const float* bias;
  void* y;
  int64_t y_stride;
  int32_t outputs;
  int32_t first;  // the target's first tile in the launch; not of a gated product
  bool bf16_y;
};

struct Arguments {
  const __nv_bfloat16* x;
  int64_t x_stride;
  int32_t rows;
  int32_t depth;
  int32_t chunks;  // of the depth
  bool wide_x;     // whether x can be read 16 bytes at a time
  bool add;
  bool gated;  // y of target 0 = function(target 0, target 1); their tiles alternate
  GateFunction function;
  Target targets[kMaxGemvParts];
};

// units: tiles, or pairs of them. Defined in gemv_launch.cuh and compiled for every layout by
// gemv_small_cuda.cu and gemv_large_cuda.cu.
template <int kLayout>
void LaunchLayout(CudaStream& stream, const Arguments& a, int32_t units);

// The kernel for more rows (gemm.cuh). tiles: of both parts, if gated. Defined in
// gemm_launch.cuh and compiled for every layout by gemm_small_cuda.cu and
// gemm_large_cuda.cu.
template <int kLayout>
void LaunchGemmLayout(CudaStream& stream, const Arguments& a, int32_t tiles);

// Its clusters: how many, of how many blocks.
struct GemmClusters {
  int32_t count, size;
};
// Those that take the least time for `blocks` blocks of outputs and a depth of `chunks`, where an
// SM has room for per_sm thread blocks.
GemmClusters ClustersFor(const CudaStream& stream, int32_t blocks, int32_t chunks, int32_t per_sm);

// Bytes of shared memory that a block can have, and those that the blocks on an SM share.
int64_t SharedMemoryOfBlock();
int64_t SharedMemoryOfSm();
// What a block of the GEMV needs at most with one team (quantized/gemv.cuh), and with two.
inline constexpr int64_t kOneTeamBytes = 99 * 1024, kTwoTeamsBytes = 224 * 1024;

// Rows [first, first + count) of x and of the outputs.
Arguments RowsOf(Arguments a, int32_t first, int32_t count);

struct Plan {
  int32_t share, more;  // tiles (pairs of them, if gated) of a block; how many have one more
  int32_t batch;        // tiles whose sums are in shared memory at a time
  int32_t segment;      // chunks of each warp whose x is in shared memory at a time
  int32_t bytes;        // of shared memory
};

// Shared memory after the rings: where a block's tiles are, sums, sums of x, x.
template <typename Shape>
struct SharedParts {
  static constexpr int kTileBytes = kSplit * Shape::kTileSums * 4;

  // Bytes of a row of x: the rows of a column of lanes must be in different banks.
  __host__ __device__ static int32_t Pitch(int32_t segment) {
    return segment * kSplit * kChunkColumns * 2 + 64;
  }
  __host__ __device__ static int32_t XSumsBytes(int32_t segment) {
    return Shape::kPacked.minimum
               ? Shape::kRows * segment * kSplit * kChunkColumns / Shape::kPacked.group * 4
               : 0;
  }
  __host__ __device__ static int32_t XBytes(int32_t segment) {
    return Shape::kRows * Pitch(segment) + XSumsBytes(segment);
  }
};

struct TilePlace {
  int target;
  int32_t tile;  // in its target
};

__device__ inline TilePlace FindTile(const Arguments& a, int32_t tile) {
  if (a.gated) return {tile % 2, tile / 2};
  static_assert(kMaxGemvParts == 4);
  const int target = (tile >= a.targets[1].first ? 1 : 0) + (tile >= a.targets[2].first ? 1 : 0) +
                     (tile >= a.targets[3].first ? 1 : 0);
  return {target, tile - a.targets[target].first};
}

// Eight columns of x, or zeros.
__device__ inline uint4 LoadX(const Arguments& a, int32_t row, int32_t column) {
  if (row >= a.rows || column >= a.depth) return {0, 0, 0, 0};
  const __nv_bfloat16* const from = a.x + row * a.x_stride + column;
  if (a.wide_x) return *reinterpret_cast<const uint4*>(from);
  const auto* const bits = reinterpret_cast<const uint16_t*>(from);
  uint32_t words[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    words[i] = bits[2 * i] | static_cast<uint32_t>(bits[2 * i + 1]) << 16;
  }
  return {words[0], words[1], words[2], words[3]};
}

// Where the sum of a group of a row of x is, of `groups` in the segment.
template <typename Shape>
__device__ int XSumAt(int row, int group, int groups) {
  return Shape::kGroups == 1 ? group * Shape::kRows + row : row * groups + group;
}

// The sum of a group of x, of which each of kLanes neighbouring lanes has eight columns.
template <int kLanes>
__device__ float GroupSum(const uint4& in) {
  const uint32_t words[4] = {in.x, in.y, in.z, in.w};
  float sum = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    sum += __uint_as_float(words[i] << 16) + __uint_as_float(words[i] & 0xffff0000u);
  }
#pragma unroll
  for (int step = 1; step < kLanes; step *= 2) sum += __shfl_xor_sync(~0u, sum, step);
  return sum;
}

// Columns [first, first + columns) of x to shared memory, in the order in which lanes use them: of
// 32 columns, those of lane part q are 16 bytes, columns 4q to 4q + 3 of each 16. Layouts with a
// minimum need the sums of the groups, too. columns: a multiple of 256, so that all lanes of a warp
// take part.
template <typename Shape>
__device__ void StoreX(const Arguments& a, int32_t first, int32_t columns, int32_t groups,
                       int pitch, uint8_t* x, float* x_sums) {
  constexpr int kTogether = Shape::kRows < 8 ? Shape::kRows : 8;  // loads in flight
  constexpr int kLanes = Shape::kPacked.group / 8;                // that have a group
#pragma unroll 1
  for (int32_t piece = static_cast<int32_t>(threadIdx.x); piece < columns / 8;
       piece += static_cast<int32_t>(blockDim.x)) {
    const int half = piece % 4 / 2, q = piece % 2 * 2;
    uint8_t* const to = x + piece / 4 * 64 + q * 16 + half * 8;
#pragma unroll 1
    for (int begin = 0; begin < Shape::kRows; begin += kTogether) {
      uint4 in[kTogether];
#pragma unroll
      for (int i = 0; i < kTogether; ++i) in[i] = LoadX(a, begin + i, first + piece * 8);
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        uint8_t* const row = to + (begin + i) * pitch;
        *reinterpret_cast<uint2*>(row) = {in[i].x, in[i].y};
        *reinterpret_cast<uint2*>(row + 16) = {in[i].z, in[i].w};
        if constexpr (Shape::kPacked.minimum) {
          const float sum = GroupSum<kLanes>(in[i]);
          if (piece % kLanes == 0) x_sums[XSumAt<Shape>(begin + i, piece / kLanes, groups)] = sum;
        }
      }
    }
  }
}

// A warp's sums of a tile: a lane's are together.
template <typename Shape>
__device__ __forceinline__ void StoreSums(const ChunkSums<Shape>& chunk, bool first, int lane,
                                          float* sums) {
  const int g = lane / 4, q = lane % 4;
  if constexpr (Shape::kGroups == 1) {
    auto* const at = reinterpret_cast<float4*>(sums + lane * 4);
    float4 total = {chunk.at[0][0], chunk.at[0][1], chunk.at[1][0], chunk.at[1][1]};
    if (!first) {
      const float4 before = *at;
      total.x += before.x, total.y += before.y, total.z += before.z, total.w += before.w;
    }
    *at = total;
  } else {
    // Several lanes have the same sums.
    if (q % (Shape::kGroups / 2) != 0) return;
    auto* const at = reinterpret_cast<float2*>(sums + (g * Shape::kRows + Shape::RowOf(q)) * 2);
    float2 total = {chunk.at[0][0], chunk.at[1][0]};
    if (!first) {
      const float2 before = *at;
      total.x += before.x, total.y += before.y;
    }
    *at = total;
  }
}

// Where StoreSums puts the sum of a row of x and an output of the tile.
template <typename Shape>
__device__ int SumAt(int row, int output) {
  const int g = output % 8, upper = output / 8;
  if constexpr (Shape::kGroups > 1) return (g * Shape::kRows + row) * 2 + upper;
  return (g * 4 + row / 2) * 4 + upper * 2 + row % 2;
}

// The warps' sums of tile `tile` of the batch.
template <typename Shape>
__device__ float AddSums(const Arguments& a, const float* sums, int tile, int row, int output) {
  const float* const at = sums + tile * kSplit * Shape::kTileSums + SumAt<Shape>(row, output);
  const int warps = min(kSplit, a.chunks);
  float value = 0;
  for (int i = 0; i < warps; ++i) value += at[i * Shape::kTileSums];
  return value;
}

// Writes the outputs of a batch: tiles [first, first + count) of the launch.
template <typename Shape>
__device__ void WriteOutputs(const Arguments& a, const float* sums, int32_t first, int32_t count) {
  const int32_t units = a.gated ? count / 2 : count;
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < units * a.rows * kRowsOfTile;
       i += static_cast<int32_t>(blockDim.x)) {
    const int column = i % kRowsOfTile, row = i / kRowsOfTile % a.rows;
    const int unit = i / kRowsOfTile / a.rows, tile = a.gated ? 2 * unit : unit;
    const TilePlace place = FindTile(a, first + tile);
    const Target& target = a.targets[place.target];
    const int32_t output = place.tile * kRowsOfTile + column;
    if (output >= target.outputs) continue;
    float value = AddSums<Shape>(a, sums, tile, row, column);
    if (target.bias != nullptr) value += target.bias[output];
    if (a.gated) {
      float up = AddSums<Shape>(a, sums, tile + 1, row, column);
      if (a.targets[1].bias != nullptr) up += a.targets[1].bias[output];
      value = a.function(value, up);
    }
    const int64_t at = row * target.y_stride + output;
    if (target.bf16_y) {
      static_cast<__nv_bfloat16*>(target.y)[at] = __float2bfloat16(value);
    } else {
      float* const y = static_cast<float*>(target.y) + at;
      *y = a.add ? *y + value : value;
    }
  }
}

}  // namespace litecache::ops::cuda::quantized
