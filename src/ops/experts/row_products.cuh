// Products of a tile of up to 16 rows with bf16 weights, bound by reading the weights: these go
// from memory directly into the registers of tensor core products, in the operands' order that
// ops/linear/gemv_cuda.cu describes.
//
// A warp processes the depth in units of 64 elements, and holds a ring of units in registers: the
// next unit's loads are issued as soon as a unit has been multiplied, so that the same number of
// bytes is in flight at all times.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "ops/common/tensor_core.cuh"

namespace litecache::ops::cuda::row_products {

inline constexpr int kGroup = 8;  // outputs of one tensor core product
// Elements of the depth that a warp loads at once: 16 bytes a lane.
inline constexpr int kStep = 32;
inline constexpr int kSteps = 2;  // of a unit
inline constexpr int kUnit = kSteps * kStep;
inline constexpr int kChunk = 8;  // elements of a lane in a step

// 16 bytes that are read once, or zeros if not present: neither do they evict x from the L1 cache
// nor other data from the L2 cache.
__device__ inline uint4 LoadOnce(const __nv_bfloat16* p, bool present) {
  // The value of createpolicy.fractional.L2::evict_first for all lines.
  constexpr uint64_t kEvictFirst = 0x12f0000000000000;
  uint4 v = {0, 0, 0, 0};
  asm volatile(
      "{\n"
      ".reg .pred present;\n"
      "setp.ne.b32 present, %5, 0;\n"
      "@present ld.global.nc.L1::no_allocate.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %6;\n"
      "}"
      : "+r"(v.x), "+r"(v.y), "+r"(v.z), "+r"(v.w)
      : "l"(p), "r"(static_cast<int>(present)), "l"(kEvictFirst));
  return v;
}

// A lane's elements of one row in a unit: 8 of each step, from the lane's own 8 q on.
struct UnitRow {
  uint4 at[kSteps];
};

// `p` points to the lane's first element of the row; the unit begins at k.
__device__ inline UnitRow LoadWeights(const __nv_bfloat16* p, int32_t k, int32_t left) {
  UnitRow row;
#pragma unroll
  for (int s = 0; s < kSteps; ++s) row.at[s] = LoadOnce(p + k + s * kStep, s * kStep < left);
  return row;
}
__device__ inline UnitRow LoadX(const __nv_bfloat16* p, int32_t k, int32_t left) {
  UnitRow row;
#pragma unroll
  for (int s = 0; s < kSteps; ++s) {
    row.at[s] = {0, 0, 0, 0};
    if (s * kStep < left) row.at[s] = *reinterpret_cast<const uint4*>(p + k + s * kStep);
  }
  return row;
}

// sum [16 rows][8 outputs] += x w^T over a unit; low: rows 0 to 7 of x, high: 8 to 15.
__device__ inline void MultiplyUnit(float (&sum)[4], const UnitRow& low, const UnitRow& high,
                                    const UnitRow& weights) {
#pragma unroll
  for (int s = 0; s < kSteps; ++s) {
    const uint4 &l = low.at[s], &h = high.at[s], &w = weights.at[s];
    MultiplyAdd(sum, {l.x, h.x, l.y, h.y}, w.x, w.y);
    MultiplyAdd(sum, {l.z, h.z, l.w, h.w}, w.z, w.w);
  }
}

}  // namespace litecache::ops::cuda::row_products
