// Within kernels: the blocks of a thread block cluster, which read each other's shared memory
// (sm_90). A launch without clusters has clusters of one block.
#pragma once

#include <cstdint>

namespace litecache::ops::cuda {

__device__ inline int32_t ClusterRank() {
  uint32_t rank = 0;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
#endif
  return static_cast<int32_t>(rank);
}
__device__ inline int32_t ClusterBlocks() {
  uint32_t blocks = 1;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(blocks));
#endif
  return static_cast<int32_t>(blocks);
}

// A barrier of all threads of a cluster, in two parts: what a thread has written before it arrives
// is visible to all that have waited. Between the two it may not wait for another such barrier.
__device__ inline void ArriveAtCluster() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
}
// The same for a thread whose writes the others need not see: the former waits until its writes to
// global memory are visible on the whole GPU.
__device__ inline void ArriveAfterReading() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
}
__device__ inline void WaitForCluster() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}

// Four floats of another block of the cluster; shared: where this block has its own.
__device__ inline float4 LoadFromBlock(uint32_t shared, int32_t rank) {
  float4 value = {};
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  uint32_t there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared), "r"(rank));
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
               : "r"(there));
#endif
  return value;
}

}  // namespace litecache::ops::cuda
