// What the two kernels of the update by chunks share: what the first hands to the second.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/cuda/cuda_device.h"
#include "ops/recurrence/gated_delta_parts.cuh"

namespace litecache::ops::cuda {

constexpr int kChunk = 64;      // tokens
constexpr int kChunkDim = 128;  // key_dim and value_dim

// A row of 128 f16 in shared memory and in scratch memory.
constexpr int kRowBytes = 256, kRowPieces = kRowBytes / 16;

// Of a token and a value head.
struct alignas(16) ChunkFactors {
  float step;   // the sigmoid
  float since;  // the decay from the chunk's beginning through the token
  float until;  // the decay after the token until the chunk's end
  float unused;
};

// Operands of a token in its row of scratch memory:
// - of each value head, its row of (I + A)^-1, then its row of P, [2][kChunk] f16;
// - of each value head, its factors;
// - of each key head, its key, [128] f16, of length 1; then of each its query, of length 1.
// That is 272 bytes a value head and 512 a key head of 512 and 1024 in a row of the projection.
struct ChunkOperands {
  std::byte* data;
  int64_t row_bytes;
  int32_t key_heads, value_heads;

  __device__ explicit ChunkOperands(const DeltaArguments& a)
      : data(reinterpret_cast<std::byte*>(a.scratch.data)),
        row_bytes(a.scratch.stride * static_cast<int64_t>(sizeof(float))),
        key_heads(a.key_heads),
        value_heads(a.value_heads) {}
  __device__ std::byte* Weights(int64_t row, int32_t head) const {
    return data + row * row_bytes + head * kRowBytes;
  }
  __device__ std::byte* Factors(int64_t row, int32_t head) const {
    return Weights(row, value_heads) + head * static_cast<int32_t>(sizeof(ChunkFactors));
  }
  __device__ std::byte* Key(int64_t row, int32_t key_head) const {
    return Factors(row, value_heads) + key_head * kRowBytes;
  }
  __device__ std::byte* Query(int64_t row, int32_t key_head) const {
    return Key(row, key_heads + key_head);
  }
};

// Addresses of the 8x8 matrices that a lane loads for a warp's products, in shared rows of
// kRowBytes (SwizzledOffset). Of 16 rows from `row` on and 16 columns, those from piece `piece` on
// (8 columns each), there are four: of rows 0-7 and 8-15, and of columns 0-7 and 8-15.
// Rows first: as operand a [16 rows][16 columns]; transposed, as operand b of both column halves,
// [16 rows][8 columns] each.
__device__ inline uint32_t RowsFirst(uint32_t shared, int row, int piece) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  return shared + SwizzledOffset(row + lane % 16, piece + lane / 16, kRowBytes);
}
// Columns first: as operand b of both row halves, [16 columns][8 rows] each.
__device__ inline uint32_t ColumnsFirst(uint32_t shared, int row, int piece) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  return shared + SwizzledOffset(row + lane / 16 * 8 + lane % 8, piece + lane / 8 % 2, kRowBytes);
}

// The first kernel: operands of all chunks.
void MakeChunkOperands(CudaStream& stream, const DeltaArguments& a);

// The largest group that it handles.
inline constexpr int kMostChunkGroup = 8;

}  // namespace litecache::ops::cuda
