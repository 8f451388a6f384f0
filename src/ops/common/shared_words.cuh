// Access to words of shared memory by address: loads, stores, and cp.async copies of 4 and 8 bytes
// from global memory (of 16: tensor_core.cuh).
#pragma once

#include <cstdint>

namespace litecache::ops::cuda {

__device__ inline void StoreShared(uint32_t shared, float2 value) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(shared), "f"(value.x), "f"(value.y)
               : "memory");
}
__device__ inline float2 LoadSharedPair(uint32_t shared) {
  float2 value;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
               : "=f"(value.x), "=f"(value.y)
               : "r"(shared)
               : "memory");
  return value;
}
__device__ inline void StoreShared(uint32_t shared, uint32_t value) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(shared), "r"(value) : "memory");
}
__device__ inline uint32_t LoadShared(uint32_t shared) {
  uint32_t value;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(value) : "r"(shared) : "memory");
  return value;
}

__device__ inline void StoreShared(uint32_t shared, uint32_t low, uint32_t high) {
  asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(shared), "r"(low), "r"(high) : "memory");
}
__device__ inline uint2 LoadSharedWords(uint32_t shared) {
  uint2 value;
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];"
               : "=r"(value.x), "=r"(value.y)
               : "r"(shared)
               : "memory");
  return value;
}

// Copies 4 bytes, or zeros if not present.
__device__ inline void CopyWord(uint32_t shared, const void* source, bool present) {
  const int bytes = present ? 4 : 0;
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared), "l"(source), "r"(bytes)
               : "memory");
}
// Copies 8 bytes, or zeros if not present.
__device__ inline void CopyPair(uint32_t shared, const void* source, bool present) {
  const int bytes = present ? 8 : 0;
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(shared), "l"(source), "r"(bytes)
               : "memory");
}

}  // namespace litecache::ops::cuda
