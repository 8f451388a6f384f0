// Flags between the device and the host: 64-bit words that one side writes and the other polls.
#pragma once

#include <cstdint>

namespace litecache::ops::cuda {

#ifdef __CUDA_ARCH__

// A load that the next one repeats; __threadfence_system() once it has seen what it waits for.
__device__ __forceinline__ uint64_t PollFlag(const uint64_t* flag) {
  uint64_t value;
  asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(flag) : "memory");
  return value;
}

// After everything this thread has written or seen written.
__device__ __forceinline__ void RaiseFlag(uint64_t* flag, uint64_t value) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(flag), "l"(value) : "memory");
}

// Wall-clock time. Clocks of SMs change their rate; this one does not.
__device__ __forceinline__ uint64_t Nanoseconds() {
  uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

#else

// The host's pass of nvcc wants to see them; nothing calls them there.
__device__ uint64_t PollFlag(const uint64_t* flag);
__device__ void RaiseFlag(uint64_t* flag, uint64_t value);
__device__ uint64_t Nanoseconds();

#endif

}  // namespace litecache::ops::cuda
