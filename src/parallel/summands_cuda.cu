#include <algorithm>

#include "base/error.h"
#include "ops/common/overlap.cuh"
#include "parallel/summands_cuda.h"
#ifdef LITECACHE_HAVE_NCCL
#include <nccl.h>
#endif
#ifdef NCCL_VERSION_CODE
#if NCCL_VERSION_CODE >= 22800
#include <nccl_device.h>

#include <cuda/atomic>

namespace litecache::parallel {
namespace {

constexpr int kThreads = 1024, kWidth = 4;
static_assert(kSumBlock == kThreads * kWidth);

__device__ uint32_t* Arrivals(const SumMeetings& m, int rank) {
  return static_cast<uint32_t*>(ncclGetLsaPointer(m.window, m.arrivals, rank)) +
         blockIdx.x * kMostSumRanks;
}

// Called by the block: waits until its counterparts have come as often as it has. Their kernels
// before this one have written by then what it reads. False: it was stopped.
__device__ bool Meet(const SumMeetings& m) {
  using Word = cuda::atomic_ref<uint32_t, cuda::thread_scope_system>;
  // The host's memory is far away: 4,096 looks at this GPU's own take about 2 ms.
  constexpr int kLooks = 4096;
  bool stopped = false;
  const uint32_t turn = m.turns[blockIdx.x] + 1;
  const int other = static_cast<int>(threadIdx.x);
  if (other < m.ranks) {
    Word(Arrivals(m, other)[m.rank]).store(turn, cuda::memory_order_release);
    const Word arrived(Arrivals(m, m.rank)[other]);
    for (int looks = 1;
         !stopped && static_cast<int32_t>(arrived.load(cuda::memory_order_acquire) - turn) < 0;
         ++looks) {
      stopped = looks % kLooks == 0 && *const_cast<const volatile uint32_t*>(m.stop) != 0;
    }
  }
  stopped = __syncthreads_or(stopped);
  if (threadIdx.x == 0) m.turns[blockIdx.x] = turn;
  return !stopped;
}

__global__ void SumKernel(SumMeetings meetings, size_t offset, float* y, int64_t count, bool add) {
  ops::cuda::LetNextKernelStart();
  ops::cuda::WaitForKernelBefore();
  if (!Meet(meetings)) return;
  for (int64_t at = blockIdx.x * kSumBlock + threadIdx.x * kWidth; at < count;
       at += gridDim.x * kSumBlock) {
    float4 sum = add ? *reinterpret_cast<const float4*>(y + at) : float4{0, 0, 0, 0};
    for (int rank = 0; rank < meetings.ranks; ++rank) {
      const auto* from =
          static_cast<const float*>(ncclGetLsaPointer(meetings.window, offset, rank)) + at;
      const float4 part = *reinterpret_cast<const float4*>(from);
      sum.x += part.x;
      sum.y += part.y;
      sum.z += part.z;
      sum.w += part.w;
    }
    *reinterpret_cast<float4*>(y + at) = sum;
  }
}

}  // namespace

void SumWindows(Stream& stream, const SumMeetings& meetings, size_t offset, ops::Epilogue epilogue,
                const MatrixView& y) {
  const int64_t count = y.rows * y.cols;
  const int64_t blocks = std::min((count + kSumBlock - 1) / kSumBlock, kMostSumBlocks);
  LC_CHECK(count % kWidth == 0 && y.stride == y.cols);
  ops::cuda::LaunchOverlapping(AsCuda(stream), SumKernel, dim3(static_cast<unsigned>(blocks)),
                               dim3(kThreads), 0, meetings, offset, y.Row<float>(0), count,
                               epilogue == ops::Epilogue::kAdd);
}

}  // namespace litecache::parallel
#endif
#endif
