// Parts of grouped_gemm_cuda.cu: a block's tile, how it gets into shared memory and how results
// leave. hopper/grouped_gemm.cu has its own way into shared memory.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "ops/common/gate_function.h"
#include "ops/common/tensor_core.cuh"
#include "ops/experts/expert_address.cuh"
#include "ops/experts/expert_lists_cuda.h"
#include "ops/experts/grouped_gemm_cuda.h"

namespace litecache::ops::cuda::grouped {

inline constexpr int kThreads = 128;     // warps [2 of rows][2 of outputs]
inline constexpr int kWeightRows = 128;  // of a tile: its outputs, or half of gate and half of up
inline constexpr int kDepth = 64;        // elements in a stage
inline constexpr int kRowBytes = 2 * kDepth;
inline constexpr int kChunk = 8;                                // elements in 16 bytes
inline constexpr int kCopyRows = kThreads / (kDepth / kChunk);  // that all threads copy at once
// Tiles whose blocks follow each other before the next outputs: together with their neighbours'
// blocks, they share weights, and the blocks of other outputs share rows of x, in the L2 cache.
inline constexpr int32_t kTileGroup = 16;

struct GroupedArguments {
  const __nv_bfloat16* x;
  int64_t x_stride;
  int32_t divisor;  // pair p multiplies row p / divisor of x
  const int32_t* order;
  const ExpertTile* tiles;
  int32_t most_tiles, output_blocks;
  GroupedWeights weights[2];
  int32_t outputs, depth;
  GateFunction function;
  __nv_bfloat16* y;
  int64_t y_stride;
};

__device__ inline const __nv_bfloat16* MatrixOf(const GroupedWeights& weights, int32_t expert) {
  if (weights.data != nullptr) {
    return static_cast<const __nv_bfloat16*>(AddressOf(weights.data, expert));
  }
  return static_cast<const __nv_bfloat16*>(weights.base) +
         (expert - weights.begin) * weights.expert_stride;
}

// Stages in shared memory: rows of x, then rows of weights. For a gated product the latter are, for
// each column of warps, 32 outputs of gate and the same 32 of up.
template <int kRows, bool kGated>
class StageCopies {
 public:
  static constexpr int kBytes = (kRows + kWeightRows) * kRowBytes;  // of a stage

  // pairs: [kRows] in shared memory, of which the first `count` are valid; first: of the outputs.
  __device__ StageCopies(const GroupedArguments& a, const int32_t* pairs, int32_t expert,
                         int32_t count, int32_t first)
      : row_(static_cast<int32_t>(threadIdx.x) / (kDepth / kChunk)),
        k_(static_cast<int32_t>(threadIdx.x) % (kDepth / kChunk) * kChunk),
        depth_(a.depth),
        count_(count),
        outputs_left_(a.outputs - first),
        x_(a.x + k_) {
    place_ = SwizzledOffset(row_, k_ / kChunk, kRowBytes);
#pragma unroll
    for (int i = 0; i < kXCopies; ++i) {
      const int32_t row = row_ + i * kCopyRows;
      const int64_t offset = row < count ? pairs[row] / a.divisor * a.x_stride : 0;
      chunks_[i] = static_cast<uint32_t>(offset / kChunk);
    }
#pragma unroll
    for (int m = 0; m < kMatrices; ++m) {
      weights_[m] = MatrixOf(a.weights[m], expert) + (first + row_) * a.weights[m].stride + k_;
      steps_[m] = a.weights[m].stride * kCopyRows;
    }
  }

  // The next stage's rows of x; CopyWeights() follows.
  __device__ void CopyX(uint32_t stage) const {
#pragma unroll
    for (int i = 0; i < kXCopies; ++i) {
      CopyChunk(stage + place_ + i * kCopyRows * kRowBytes, x_ + int64_t{chunks_[i]} * kChunk,
                row_ + i * kCopyRows < count_ && k_ < depth_);
    }
  }
  __device__ void CopyWeights(uint32_t stage) {
    const uint32_t at = stage + kRows * kRowBytes + place_;
#pragma unroll
    for (int i = 0; i < kWeightCopies; ++i) {
      // Of a gated product: two copies of gate, two of up, and the same for the next 32 outputs.
      const int matrix = kGated ? i / 2 % 2 : 0;
      const int step = kGated ? i / 4 * 2 + i % 2 : i;
      CopyChunk(at + i * kCopyRows * kRowBytes, weights_[matrix] + step * steps_[matrix],
                row_ + step * kCopyRows < outputs_left_ && k_ < depth_);
    }
    k_ += kDepth;
    x_ += kDepth;
#pragma unroll
    for (int m = 0; m < kMatrices; ++m) weights_[m] += kDepth;
  }

 private:
  static constexpr int kXCopies = kRows / kCopyRows, kWeightCopies = kWeightRows / kCopyRows;
  static constexpr int kMatrices = kGated ? 2 : 1;
  static_assert(kCopyRows == 16 && kCopyRows % 8 == 0);

  // This thread's first row, of those that all threads copy at once, and its place in the depth.
  int32_t row_, k_;
  int32_t depth_, count_, outputs_left_;
  uint32_t place_;             // in a stage
  uint32_t chunks_[kXCopies];  // where its rows of x begin
  const __nv_bfloat16* x_;
  const __nv_bfloat16* weights_[kMatrices];
  int64_t steps_[kMatrices];
};

// Calls add(n, i, bias) for the two outputs, i, that this lane has of each tensor core product of
// outputs `first` + 8 n on; not at all without biases.
template <int kChunks, typename Add>
__device__ inline void ForEachBias(const ExpertBiases& biases, int32_t expert, int32_t first,
                                   int32_t outputs, const Add& add) {
  const float* const from = biases.From(expert, first + static_cast<int32_t>(threadIdx.x) % 4 * 2);
  if (from == nullptr) return;
#pragma unroll
  for (int n = 0; n < kChunks; ++n) {
    if (first + n * kChunk >= outputs) continue;
#pragma unroll
    for (int i = 0; i < 2; ++i) add(n, i, from[n * kChunk + i]);
  }
}

// Writes a warp's results [rows][kChunks * 8 outputs]. values(m, n, i): element i of the tensor
// core product of rows 16 m on and outputs 8 n on. area: the warp's own [16][kRowBytes] of shared
// memory, through which whole lines get to memory.
template <int kProducts, int kChunks, typename Values>
__device__ inline void WriteRows(const GroupedArguments& a, const int32_t* pairs, int32_t count,
                                 int32_t first, uint8_t* area, const Values& values) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int g = lane / 4, q = lane % 4;
#pragma unroll
  for (int m = 0; m < kProducts; ++m) {
#pragma unroll
    for (int n = 0; n < kChunks; ++n) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        auto* const at = reinterpret_cast<uint32_t*>(
            area + SwizzledOffset(g + 8 * half, n, kRowBytes) + q * sizeof(uint32_t));
        *at = PackBf16(values(m, n, 2 * half), values(m, n, 2 * half + 1));
      }
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kChunks / 2; ++i) {
      const int row = (i * 32 + lane) / kChunks, chunk = lane % kChunks;
      const int32_t output = first + chunk * kChunk;
      if (16 * m + row < count && output < a.outputs) {
        *reinterpret_cast<uint4*>(a.y + pairs[16 * m + row] * a.y_stride + output) =
            *reinterpret_cast<const uint4*>(area + SwizzledOffset(row, chunk, kRowBytes));
      }
    }
    __syncwarp();
  }
}

}  // namespace litecache::ops::cuda::grouped
