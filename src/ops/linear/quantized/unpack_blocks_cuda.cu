#include <cuda_bf16.h>

#include "base/error.h"
#include "ops/common/overlap.cuh"
#include "ops/dense/embedding_cuda.h"
#include "ops/linear/quantized/packed_blocks.h"
#include "ops/linear/quantized/packed_layout.h"
#include "ops/linear/quantized/unpack_blocks.cuh"
#include "ops/linear/quantized/unpack_blocks_cuda.h"

namespace litecache::ops::cuda {
namespace {

using namespace quantized;

constexpr int kThreads = kUnpackThreads;

template <int kLayout>
__global__ void UnpackKernel(const uint8_t* packed, int32_t chunks, int32_t rows, int64_t cols,
                             __nv_bfloat16* y) {
  LetNextKernelStart();
  WaitForKernelBefore();
  UnpackChunk<kLayout>(packed, chunks, rows, cols, y);
}

template <int kLayout>
__global__ void GatherBlocksKernel(const uint8_t* table, int32_t chunks, int64_t table_rows,
                                   const int32_t* ids, float* y, int64_t y_stride, int32_t pieces,
                                   bool add, int32_t first, float unknown) {
  constexpr PackedLayout kPacked = kPackedLayouts[kLayout];
  LetNextKernelStart();
  WaitForKernelBefore();
  const int64_t t = blockIdx.x;
  const int32_t id = ids[t] - first;
  const bool known = id >= 0 && id < table_rows;
  const int32_t table_row = known ? id : 0;
  const uint8_t* const tile = table + int64_t{table_row / 16} * chunks * kPacked.Bytes();
  for (auto i = static_cast<int32_t>(blockIdx.y * kThreads + threadIdx.x); i < pieces;
       i += static_cast<int32_t>(gridDim.y) * kThreads) {
    const int32_t chunk = i / kUnpackPieces, step = i % kUnpackPieces / 4, q = i % 4;
    float values[8];
    ReadPackedValues(kPacked, tile + int64_t{chunk} * kPacked.Bytes(), table_row % 16, step, q,
                     values);
    float* const to = y + t * y_stride + chunk * kChunkColumns + step * 32 + q * 4;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      float* const at = to + j / 4 * 16 + j % 4;
      const float value = known ? values[j] : unknown;
      *at = add ? *at + value : value;
    }
  }
}

}  // namespace

void UnpackBlocks(CudaStream& stream, const MatrixView& weight, int64_t first,
                  const MatrixView& y) {
  LC_CHECK(y.dtype == DType::kBF16 && y.cols == weight.cols && y.stride == y.cols);
  LC_CHECK(first % kPackedRows == 0 && first >= 0 && first + y.rows <= weight.rows);
  LC_CHECK(y.cols % 32 == 0 && reinterpret_cast<uintptr_t>(y.data) % 8 == 0);
  if (y.rows == 0 || y.cols == 0) return;
  const auto chunks = static_cast<int32_t>(PackedChunks(y.cols));
  const int64_t tiles = (y.rows + kPackedRows - 1) / kPackedRows;
  LC_CHECK(tiles <= 65535, "{} rows in one launch", y.rows);
  const uint8_t* const from =
      static_cast<const uint8_t*>(weight.data) + PackedBytes(*weight.format, first, weight.cols);
  CallForLayout(weight, [&]<int kLayout>() {
    const dim3 grid(static_cast<unsigned>(chunks), static_cast<unsigned>(tiles));
    LaunchOverlapping(stream, UnpackKernel<kLayout>, grid, kThreads, 0, from, chunks,
                      static_cast<int32_t>(y.rows), y.cols, y.Row<__nv_bfloat16>(0));
  });
}

void GatherBlocks(CudaStream& stream, const MatrixView& table, const int32_t* ids,
                  const MatrixView& y, Epilogue epilogue, int64_t first) {
  LC_CHECK(y.dtype == DType::kF32 && table.cols == y.cols && table.rows >= 1);
  LC_CHECK(y.cols % 32 == 0);
  if (y.rows == 0 || y.cols == 0) return;
  const auto pieces = static_cast<int32_t>(y.cols / 8);
  CallForLayout(table, [&]<int kLayout>() {
    const dim3 grid(static_cast<unsigned>(y.rows),
                    static_cast<unsigned>((pieces + kThreads - 1) / kThreads));
    LaunchOverlapping(stream, GatherBlocksKernel<kLayout>, grid, kThreads, 0,
                      static_cast<const uint8_t*>(table.data),
                      static_cast<int32_t>(PackedChunks(y.cols)), table.rows, ids, y.Row<float>(0),
                      y.stride, pieces, epilogue == Epilogue::kAdd, FirstRow(first),
                      OfUnknown(first));
  });
}

}  // namespace litecache::ops::cuda
