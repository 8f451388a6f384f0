// What the two kernels of few-row products share.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "device/cuda/cuda_device.h"
#include "ops/cuda/gemv.h"

namespace litecache::ops::cuda {

struct GemvTarget {
  const __nv_bfloat16* weight;
  int64_t stride;
  const float* bias;
  void* y;
  int64_t y_stride;
  int32_t outputs;
  int32_t first;  // block or output of the launch, as the kernel counts
  bool bf16_y;
};

struct GemvArguments {
  const __nv_bfloat16* x;
  int64_t x_stride;
  int32_t rows;
  int32_t depth;
  bool add;
  int32_t count;
  GemvTarget targets[kMaxGemvParts];
};

// The target that has block or output `at`.
__device__ inline const GemvTarget& TargetOf(const GemvArguments& a, int32_t at) {
  int index = 0;
  while (index + 1 < a.count && at >= a.targets[index + 1].first) ++index;
  return a.targets[index];
}

__device__ inline void StoreSum(const GemvArguments& a, const GemvTarget& target, int row,
                                int32_t output, float value) {
  if (target.bias != nullptr) value += target.bias[output];
  const int64_t at = row * target.y_stride + output;
  if (target.bf16_y) {
    static_cast<__nv_bfloat16*>(target.y)[at] = __float2bfloat16(value);
  } else {
    auto* y = static_cast<float*>(target.y) + at;
    *y = a.add ? *y + value : value;
  }
}

// sum [16 rows][8 outputs] += x w^T over 16 elements of the depth.
__device__ inline void GemvMultiply(float (&sum)[4], uint32_t low0, uint32_t high0, uint32_t low8,
                                    uint32_t high8, uint32_t w_low, uint32_t w_high) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(low0), "r"(low8), "r"(high0), "r"(high8), "r"(w_low), "r"(w_high));
}

// Whether the kernel of gemv_bulk.cu takes so many rows, on this GPU and in this program.
bool BulkGemvServes(int64_t rows);
// Rows of x and weights aligned to 16 bytes, a.count >= 1.
void BulkGemv(CudaStream& stream, GemvArguments& a);

}  // namespace litecache::ops::cuda
