// Shared by kernels: vectorized accesses, and sums over threads in a fixed order.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "base/matrix_view.h"

namespace litecache::ops::cuda {

// kWidth elements that are loaded or stored in one access; pointers to it are aligned to its size.
template <typename T, int kWidth>
struct alignas(sizeof(T) * kWidth) Vector {
  T at[kWidth];
};

template <int kWidth, typename T>
__device__ inline Vector<T, kWidth> Load(const T* p) {
  return *reinterpret_cast<const Vector<T, kWidth>*>(p);
}

template <int kWidth, typename T>
__device__ inline void Store(T* p, const float (&values)[kWidth]) {
  Vector<T, kWidth> v;
#pragma unroll
  for (int i = 0; i < kWidth; ++i) v.at[i] = static_cast<T>(values[i]);
  *reinterpret_cast<Vector<T, kWidth>*>(p) = v;
}

// Whether all rows of `m` can be read `width` elements at a time.
inline bool Aligned(const MatrixView& m, int width) {
  const auto bytes = static_cast<uintptr_t>(width) * SizeOf(m.dtype);
  return m.cols % width == 0 && reinterpret_cast<uintptr_t>(m.data) % bytes == 0 &&
         (m.rows <= 1 || m.stride % width == 0);
}
inline bool Aligned(const float* p, int width) {
  return reinterpret_cast<uintptr_t>(p) % (static_cast<uintptr_t>(width) * sizeof(float)) == 0;
}

// Prefetches a global address into the L2 cache.
__device__ inline void PrefetchToL2(const void* address) {
#ifdef __CUDA_ARCH__
  asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
#endif
}

// The same for a multiple of 16 bytes, 16-byte aligned, on GPUs that do so in one instruction
// (sm_90).
__device__ inline void PrefetchBytesToL2(const void* address, int32_t bytes) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(address), "r"(bytes));
#endif
}

// Every lane gets the same bits: the sum's order is symmetric.
__device__ inline float LaneSum(float value) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffffu, value, step);
  return value;
}

}  // namespace litecache::ops::cuda
