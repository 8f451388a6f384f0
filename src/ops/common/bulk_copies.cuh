// Asynchronous bulk copies of contiguous memory (sm_90; nothing on earlier GPUs): a barrier
// completes a phase when the number of bytes that it expects has arrived.
#pragma once

#include <cstdint>

namespace litecache::ops::cuda {

__device__ inline void InitBarrier(uint32_t barrier) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier) : "memory");
#endif
}
__device__ inline void ExpectBytes(uint32_t barrier, uint32_t bytes) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
#endif
}
__device__ inline void CopyRun(uint32_t shared, const void* source, uint32_t bytes,
                               uint32_t barrier) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(shared),
      "l"(source), "r"(bytes), "r"(barrier)
      : "memory");
#endif
}
__device__ inline void WaitForRuns(uint32_t barrier, uint32_t parity) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n"
      ".reg .pred there;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 there, [%0], %1;\n"
      "@!there bra again;\n"
      "}" ::"r"(barrier),
      "r"(parity)
      : "memory");
#endif
}
// Orders this thread's earlier accesses to shared memory before bulk copies that write there.
__device__ inline void BeforeRuns() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

}  // namespace litecache::ops::cuda
