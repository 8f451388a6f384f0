#include "base/error.h"
#include "ops/common/overlap.cuh"
#include "parallel/summands_cuda.h"
#ifdef LITECACHE_HAVE_NCCL
#include <nccl.h>
#endif
#ifdef NCCL_VERSION_CODE
#if NCCL_VERSION_CODE >= 22800
#include <nccl_device.h>

namespace litecache::parallel {
namespace {

constexpr int kThreads = 1024, kWidth = 4;
static_assert(kSumBlock == kThreads * kWidth);

__global__ void SumKernel(ncclDevComm ranks, ncclWindow_t window, size_t offset, float* y,
                          int64_t count, bool add) {
  ops::cuda::LetNextKernelStart();
  ops::cuda::WaitForKernelBefore();
  {
    // A block waits for its counterparts, whose kernels before this one have written what it reads.
    ncclLsaBarrierSession<ncclCoopCta> barrier(ncclCoopCta(), ranks, ncclTeamTagLsa(), blockIdx.x);
    barrier.sync(ncclCoopCta(), cuda::memory_order_acq_rel);
  }
  const int64_t at = blockIdx.x * kSumBlock + threadIdx.x * kWidth;
  if (at >= count) return;
  float4 sum = add ? *reinterpret_cast<const float4*>(y + at) : float4{0, 0, 0, 0};
  for (int rank = 0; rank < ranks.lsaSize; ++rank) {
    const auto* from = static_cast<const float*>(ncclGetLsaPointer(window, offset, rank)) + at;
    const float4 part = *reinterpret_cast<const float4*>(from);
    sum.x += part.x;
    sum.y += part.y;
    sum.z += part.z;
    sum.w += part.w;
  }
  *reinterpret_cast<float4*>(y + at) = sum;
}

}  // namespace

void SumWindows(Stream& stream, const ncclDevComm& ranks, ncclWindow_vidmem* window, size_t offset,
                ops::Epilogue epilogue, const MatrixView& y) {
  const int64_t count = y.rows * y.cols;
  const int64_t blocks = (count + kSumBlock - 1) / kSumBlock;
  LC_CHECK(count % kWidth == 0 && blocks <= kMostSumBlocks && y.stride == y.cols);
  ops::cuda::LaunchOverlapping(AsCuda(stream), SumKernel, dim3(static_cast<unsigned>(blocks)),
                               dim3(kThreads), 0, ranks, window, offset, y.Row<float>(0), count,
                               epilogue == ops::Epilogue::kAdd);
}

}  // namespace litecache::parallel
#endif
#endif
