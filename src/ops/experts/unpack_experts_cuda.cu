#include "base/error.h"
#include "ops/common/overlap.cuh"
#include "ops/experts/expert_address.cuh"
#include "ops/experts/unpack_experts_cuda.h"
#include "ops/linear/quantized/packed_blocks.h"
#include "ops/linear/quantized/unpack_blocks.cuh"

namespace litecache::ops::cuda {
namespace {

using namespace quantized;

constexpr int64_t kMostGridPart = 65535;  // of the y and z dimensions

// matrices: of the first expert that blockIdx.z counts; offset: bytes before their first row.
template <int kLayout>
__global__ void UnpackExpertsKernel(const void* const* matrices, uint64_t offset, int32_t chunks,
                                    int32_t rows, int64_t cols, __nv_bfloat16* y) {
  LetNextKernelStart();
  WaitForKernelBefore();
  const auto* const packed =
      static_cast<const uint8_t*>(AddressOf(matrices, static_cast<int32_t>(blockIdx.z))) + offset;
  UnpackChunk<kLayout>(packed, chunks, rows, cols, y + int64_t{blockIdx.z} * rows * cols);
}

// Matrices of bf16, which experts in host memory have.
constexpr int kCopyThreads = 256;
constexpr int kCopyLoads = 8;  // of 16 bytes, in flight of a thread

__global__ void __launch_bounds__(kCopyThreads)
    CopyExpertsKernel(const void* const* matrices, int64_t offset, int64_t chunks, uint4* y) {
  WaitForKernelBefore();
  LetNextKernelStart();
  const auto* const from =
      static_cast<const uint4*>(AddressOf(matrices, static_cast<int32_t>(blockIdx.y))) + offset;
  uint4* const to = y + int64_t{blockIdx.y} * chunks;
  const int64_t begin =
      int64_t{blockIdx.x} * kCopyThreads * kCopyLoads + static_cast<int64_t>(threadIdx.x);
  uint4 values[kCopyLoads];
#pragma unroll
  for (int i = 0; i < kCopyLoads; ++i) {
    const int64_t at = begin + i * kCopyThreads;
    if (at < chunks) values[i] = __ldcs(from + at);
  }
#pragma unroll
  for (int i = 0; i < kCopyLoads; ++i) {
    const int64_t at = begin + i * kCopyThreads;
    if (at < chunks) to[at] = values[i];
  }
}

void CopyExperts(CudaStream& stream, const ExpertMatrices& matrices, int64_t begin, int64_t end,
                 int64_t first, int64_t rows, void* y) {
  const MatrixView& type = matrices.type;
  constexpr int64_t kChunk = 8;  // elements
  LC_CHECK(type.cols % kChunk == 0 && type.stride == type.cols);
  const int64_t chunks = rows * type.cols / kChunk;
  constexpr int64_t kPiece = kCopyThreads * kCopyLoads;
  const dim3 grid(static_cast<unsigned>((chunks + kPiece - 1) / kPiece),
                  static_cast<unsigned>(end - begin));
  LaunchOverlapping(stream, CopyExpertsKernel, grid, kCopyThreads, 0, matrices.data + begin,
                    first * type.cols / kChunk, chunks, static_cast<uint4*>(y));
}

}  // namespace

void UnpackExperts(CudaStream& stream, const ExpertMatrices& matrices, int64_t begin, int64_t end,
                   int64_t first, int64_t rows, void* y) {
  const MatrixView& type = matrices.type;
  LC_CHECK(begin >= 0 && begin <= end && end <= matrices.count && end - begin <= kMostGridPart);
  LC_CHECK(first % kPackedRows == 0 && first >= 0 && first + rows <= type.rows);
  if (begin == end || rows == 0 || type.cols == 0) return;
  if (type.dtype == DType::kBF16) return CopyExperts(stream, matrices, begin, end, first, rows, y);
  LC_CHECK(type.cols % 32 == 0 && reinterpret_cast<uintptr_t>(y) % 8 == 0);
  const auto chunks = static_cast<int32_t>(PackedChunks(type.cols));
  const int64_t tiles = (rows + kPackedRows - 1) / kPackedRows;
  LC_CHECK(tiles <= kMostGridPart, "{} rows in one launch", rows);
  CallForLayout(type, [&]<int kLayout>() {
    const dim3 grid(static_cast<unsigned>(chunks), static_cast<unsigned>(tiles),
                    static_cast<unsigned>(end - begin));
    LaunchOverlapping(stream, UnpackExpertsKernel<kLayout>, grid, kUnpackThreads, 0,
                      matrices.data + begin, PackedBytes(*type.format, first, type.cols), chunks,
                      static_cast<int32_t>(rows), type.cols, static_cast<__nv_bfloat16*>(y));
  });
}

}  // namespace litecache::ops::cuda
