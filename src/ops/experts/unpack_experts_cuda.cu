#include "base/error.h"
#include "ops/common/overlap.cuh"
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
  const auto* const packed = static_cast<const uint8_t*>(matrices[blockIdx.z]) + offset;
  UnpackChunk<kLayout>(packed, chunks, rows, cols, y + int64_t{blockIdx.z} * rows * cols);
}

}  // namespace

void UnpackExperts(CudaStream& stream, const ExpertMatrices& matrices, int64_t begin, int64_t end,
                   int64_t first, int64_t rows, void* y) {
  const MatrixView& type = matrices.type;
  LC_CHECK(begin >= 0 && begin <= end && end <= matrices.count && end - begin <= kMostGridPart);
  LC_CHECK(first % kPackedRows == 0 && first >= 0 && first + rows <= type.rows);
  LC_CHECK(type.cols % 32 == 0 && reinterpret_cast<uintptr_t>(y) % 8 == 0);
  if (begin == end || rows == 0 || type.cols == 0) return;
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
