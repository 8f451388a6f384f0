// Shared by the two kernels for products of few rows (gemv_cuda.cu, gemv_ring_cuda.cu).
#pragma once

#include <cuda_bf16.h>

#include <cstdint>
#include <span>

#include "base/error.h"
#include "ops/linear/gemv_cuda.h"

namespace litecache::ops::cuda {

struct GemvTarget {
  const __nv_bfloat16* weight;
  int64_t stride;
  const float* bias;
  void* y;
  int64_t y_stride;
  int32_t outputs;
  int32_t first;  // the target's first block or output in the launch, depending on the kernel
  bool bf16_y;
};

struct GemvArguments {
  const __nv_bfloat16* x;
  int64_t x_stride;
  int32_t rows;
  int32_t depth;
  bool add;
  int32_t count;
  GateFunction function;  // of a gated product
  GemvTarget targets[kMaxGemvParts];
};

// Parts without outputs are left out.
inline GemvArguments MakeGemvArguments(const MatrixView& x, std::span<const LinearPart> parts,
                                       Epilogue epilogue) {
  LC_CHECK(x.rows >= 1 && x.rows <= kMaxGemvRows && x.dtype == DType::kBF16);
  LC_CHECK(parts.size() <= kMaxGemvParts && x.cols <= INT32_MAX / 2);
  GemvArguments a{.x = x.Row<const __nv_bfloat16>(0),
                  .x_stride = x.stride,
                  .rows = static_cast<int32_t>(x.rows),
                  .depth = static_cast<int32_t>(x.cols),
                  .add = epilogue == Epilogue::kAdd};
  for (const auto& [weight, bias, y] : parts) {
    LC_CHECK(weight.rows <= INT32_MAX / 8 && weight.dtype == DType::kBF16);
    if (weight.rows == 0) continue;
    a.targets[a.count++] = {.weight = weight.Row<const __nv_bfloat16>(0),
                            .stride = weight.stride,
                            .bias = bias,
                            .y = y.data,
                            .y_stride = y.stride,
                            .outputs = static_cast<int32_t>(weight.rows),
                            .bf16_y = y.dtype == DType::kBF16};
  }
  return a;
}

// The target that contains block or output `at`.
__device__ inline const GemvTarget& TargetOf(const GemvArguments& a, int32_t at) {
  int index = 0;
  while (index + 1 < a.count && at >= a.targets[index + 1].first) ++index;
  return a.targets[index];
}

// Its index; the targets beyond `count` must have first = INT32_MAX.
__device__ inline int TargetIndex(const GemvArguments& a, int32_t at) {
  static_assert(kMaxGemvParts == 4);
  return (at >= a.targets[1].first ? 1 : 0) + (at >= a.targets[2].first ? 1 : 0) +
         (at >= a.targets[3].first ? 1 : 0);
}

// sum [16 rows][8 outputs] += x w^T over 16 elements of the depth.
__device__ inline void GemvMultiply(float (&sum)[4], uint32_t low0, uint32_t high0, uint32_t low8,
                                    uint32_t high8, uint32_t w_low, uint32_t w_high) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(low0), "r"(low8), "r"(high0), "r"(high8), "r"(w_low), "r"(w_high));
}

}  // namespace litecache::ops::cuda
