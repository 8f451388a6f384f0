// Values of packed blocks (packed_layout.h) in bf16, for the kernels that write whole matrices of
// them.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>
#include <utility>

#include "base/error.h"
#include "base/matrix_view.h"
#include "ops/common/tensor_core.cuh"
#include "ops/linear/quantized/packed_blocks.h"
#include "ops/linear/quantized/packed_layout.h"

namespace litecache::ops::cuda::quantized {

constexpr int kUnpackThreads = 256;  // of a block
// Of a row of a chunk: a step's columns of lane part q.
constexpr int kUnpackPieces = kChunkSteps * 4;

// y [rows, cols] = the values of a packed matrix; a block has chunk blockIdx.x of tile blockIdx.y.
// Four threads write 32 contiguous bytes of a row.
template <int kLayout>
__device__ void UnpackChunk(const uint8_t* packed, int32_t chunks, int32_t rows, int64_t cols,
                            __nv_bfloat16* y) {
  constexpr PackedLayout kPacked = kPackedLayouts[kLayout];
  const uint8_t* const chunk =
      packed + (int64_t{blockIdx.y} * chunks + blockIdx.x) * kPacked.Bytes();
  for (int i = static_cast<int>(threadIdx.x); i < kPackedRows * kUnpackPieces;
       i += kUnpackThreads) {
    const int q = i % 4, row = i / 4 % 16, step = i / 64;
    const int64_t y_row = int64_t{blockIdx.y} * kPackedRows + row;
    const int64_t column = int64_t{blockIdx.x} * kChunkColumns + step * 32 + q * 4;
    if (y_row >= rows || column >= cols) continue;
    float values[8];
    ReadPackedValues(kPacked, chunk, row, step, q, values);
    auto* const to = reinterpret_cast<uint2*>(y + y_row * cols + column);
    to[0] = {PackBf16(values[0], values[1]), PackBf16(values[2], values[3])};
    to[4] = {PackBf16(values[4], values[5]), PackBf16(values[6], values[7])};
  }
}

template <typename F, int... kLayouts>
void CallForIndex(int layout, const F& f, std::integer_sequence<int, kLayouts...>) {
  ((layout == kLayouts ? f.template operator()<kLayouts>() : void()), ...);
}

// Calls f.operator()<index>() for the layout of a matrix of packed blocks.
template <typename F>
void CallForLayout(const MatrixView& matrix, const F& f) {
  LC_CHECK(matrix.dtype == DType::kBlocks && matrix.format != nullptr);
  const int layout = PackedLayoutOf(matrix.format->name);
  LC_CHECK(layout >= 0, "{} is not packed", matrix.format->name);
  LC_CHECK(reinterpret_cast<uintptr_t>(matrix.data) % 16 == 0);
  CallForIndex(layout, f, std::make_integer_sequence<int, kPackedLayoutCount>());
}

}  // namespace litecache::ops::cuda::quantized
