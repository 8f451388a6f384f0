// Flags between the device and the host: 64-bit words that one side writes and the other polls.
#pragma once

#include <cstdint>

namespace litecache::ops::cuda {

#ifdef __CUDA_ARCH__

// A relaxed load for polling; call __threadfence_system() once the awaited value has been seen.
__device__ __forceinline__ uint64_t PollFlag(const uint64_t* flag) {
  uint64_t value;
  asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(flag) : "memory");
  return value;
}

// Written after everything this thread has written or seen before.
__device__ __forceinline__ void RaiseFlag(uint64_t* flag, uint64_t value) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(flag), "l"(value) : "memory");
}

// Wall-clock time: unlike the clocks of SMs, its rate does not change.
__device__ __forceinline__ uint64_t Nanoseconds() {
  uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

#else

// nvcc's host pass needs declarations; nothing calls them there.
__device__ uint64_t PollFlag(const uint64_t* flag);
__device__ void RaiseFlag(uint64_t* flag, uint64_t value);
__device__ uint64_t Nanoseconds();

#endif

}  // namespace litecache::ops::cuda
