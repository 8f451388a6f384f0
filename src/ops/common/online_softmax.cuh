// The softmax arithmetic of all attention kernels, the same as in
// ops/attention/attention_tile_cpu.cc: scores are in units of log2 e, the running maximum stays
// finite, and a tile of infinite scores gives a mean.
#pragma once

#include "ops/common/soft_cap.cuh"
#include "ops/common/tensor_core.cuh"

namespace litecache::ops::cuda {

inline constexpr float kLargestScore = 3.402823466e38f;
// Above this, the difference of a score and the maximum needs care.
inline constexpr float kHugeScore = 1e38f;

// For any scores, including infinite ones; minus infinity counts only if all scores are minus
// infinity.
__device__ inline float CarefulExp2(float x) { return Exp2(fmaxf(fminf(x, 0.0f), -126.0f)); }

// The maximum over the four lanes that hold a row of a matrix product's result.
__device__ inline float QuadMax(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}
__device__ inline float QuadSum(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

}  // namespace litecache::ops::cuda
