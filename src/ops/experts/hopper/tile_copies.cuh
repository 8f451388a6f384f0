// How the operands of grouped_gemm.cu get into shared memory.
//
// A stage has rows of x and then rows of weights, each kRowBytes long. With their chunks in the
// places that SwizzledOffset() gives them, eight rows are what the tensor cores call a 128-byte
// swizzle.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "ops/common/tensor_core.cuh"
#include "ops/experts/hopper/tile_order.cuh"

namespace litecache::ops::cuda::grouped {

inline constexpr int kStageWeights = 256;  // rows: a tile's outputs, or half of gate, half of up
inline constexpr int kWarpgroup = 128;     // threads

// The copies of one thread of a warpgroup. For a gated product, the rows of weights are 64 of gate,
// the same 64 of up, and the next 64 of both.
template <int kRows, bool kGated>
class TileCopies {
 public:
  static constexpr int kBytes = (kRows + kStageWeights) * kRowBytes;  // of a stage

  // What must be looked up in memory before a tile's first copy.
  struct Source {
    TileOutputs tile;
    int32_t pairs[kRows / kCopyRows];
    const __nv_bfloat16* weights[kGated ? 2 : 1];
  };

  // thread: of the warpgroup.
  __device__ TileCopies(const GroupedArguments& a, int thread)
      : a_(a), row_(thread / kRowChunks), first_k_(thread % kRowChunks * kChunk) {
    place_ = SwizzledOffset(row_, thread % kRowChunks, kRowBytes);
#pragma unroll
    for (int m = 0; m < kMatrices; ++m) steps_[m] = a.weights[m].stride * kCopyRows;
  }

  __device__ Source LookUp(const TileOutputs& tile) const {
    Source source;
    source.tile = tile;
#pragma unroll
    for (int i = 0; i < kXCopies; ++i) {
      const int32_t row = row_ + i * kCopyRows;
      source.pairs[i] = row < tile.tile.count ? a_.order[tile.tile.first + row] : 0;
    }
#pragma unroll
    for (int m = 0; m < kMatrices; ++m) {
      source.weights[m] = MatrixOf(a_.weights[m], tile.tile.expert);
    }
    return source;
  }

  __device__ void Begin(const Source& source) {
    k_ = first_k_;
    x_ = a_.x + k_;
    rows_left_ = source.tile.tile.count - row_;
    outputs_left_ = a_.outputs - source.tile.first - row_;
#pragma unroll
    for (int i = 0; i < kXCopies; ++i) {
      chunks_[i] = static_cast<uint32_t>(source.pairs[i] / a_.divisor * a_.x_stride / kChunk);
    }
#pragma unroll
    for (int m = 0; m < kMatrices; ++m) {
      weights_[m] = source.weights[m] + (source.tile.first + row_) * a_.weights[m].stride + k_;
    }
  }

  // The tile's next stage; zeros behind the ends of the tile, the outputs and the depth.
  __device__ void Copy(uint32_t stage) {
    const bool present = k_ < a_.depth;
#pragma unroll
    for (int i = 0; i < kXCopies; ++i) {
      CopyChunk(stage + place_ + i * kCopyRows * kRowBytes, x_ + int64_t{chunks_[i]} * kChunk,
                present && i * kCopyRows < rows_left_);
    }
#pragma unroll
    for (int m = 0; m < kMatrices; ++m) {
      const __nv_bfloat16* from = weights_[m];
#pragma unroll
      for (int i = 0; i < kWeightCopies; ++i) {
        // 64 rows of one matrix, then 64 of the other.
        const int part = i / kPartCopies * kMatrices + m;
        const int row = kRows + part * kPartRows + i % kPartCopies * kCopyRows;
        CopyChunk(stage + place_ + row * kRowBytes, from, present && i * kCopyRows < outputs_left_);
        from += steps_[m];
      }
    }
    k_ += kDepth;
    x_ += kDepth;
#pragma unroll
    for (int m = 0; m < kMatrices; ++m) weights_[m] += kDepth;
  }

 private:
  static constexpr int kRowChunks = kDepth / kChunk;
  static constexpr int kMatrices = kGated ? 2 : 1;
  static constexpr int kXCopies = kRows / kCopyRows;
  static constexpr int kWeightCopies = kStageWeights / kMatrices / kCopyRows;
  static constexpr int kPartRows = 64, kPartCopies = kPartRows / kCopyRows;
  static_assert(kCopyRows == kWarpgroup / kRowChunks && kCopyRows % 8 == 0);

  const GroupedArguments& a_;
  // This thread's first row, of those that all threads copy at once, and its place in the depth.
  int32_t row_, first_k_, k_;
  int32_t rows_left_, outputs_left_;  // from row_ on
  uint32_t place_;                    // in a stage
  uint32_t chunks_[kXCopies];         // where its rows of x begin
  const __nv_bfloat16* x_;
  const __nv_bfloat16* weights_[kMatrices];
  int64_t steps_[kMatrices];
};

}  // namespace litecache::ops::cuda::grouped
