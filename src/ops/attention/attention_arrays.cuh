// Queries and outputs of an attention, as its kernels take them.
#pragma once

#include <cuda_bf16.h>

#include "ops/attention/attention_kernels_cuda.h"
#include "ops/common/online_softmax.cuh"
#include "ops/common/tensor_core.cuh"

namespace litecache::ops::cuda {

struct AttentionArrays {
  const float* q = nullptr;
  int64_t q_stride = 0;
  void* out = nullptr;
  int64_t out_stride = 0;
  bool out_bf16 = false;
  float scale = 0;               // for scores in units of log2 e
  SoftCapOf cap;                 // of these scores
  const float* sinks = nullptr;  // [q_heads], or null
  float* log_sums = nullptr;
  int32_t head_dim = 0, group = 0, q_heads = 0;

  AttentionArrays() = default;
  AttentionArrays(const AttentionOperands& operands, int64_t kv_heads, int64_t dim)
      : q(operands.q.Row<const float>(0)),
        q_stride(operands.q.stride),
        out(operands.out.data),
        out_stride(operands.out.stride),
        out_bf16(operands.out.dtype == DType::kBF16),
        scale(operands.scale),
        cap(operands.cap),
        sinks(operands.sinks),
        log_sums(operands.log_sums),
        head_dim(static_cast<int32_t>(dim)),
        group(operands.q_heads / static_cast<int32_t>(kv_heads)),
        q_heads(operands.q_heads) {}

#ifdef __CUDACC__
  // Two neighbouring values of a query as bf16, multiplied by the scale; beyond head_dim zeros.
  __device__ uint32_t ScaledPair(const float* query, int32_t channel) const {
    if (channel >= head_dim) return 0;
    const auto value = *reinterpret_cast<const float2*>(query + channel);
    return PackBf16(value.x * scale, value.y * scale);
  }
  __device__ void Store(int64_t row, int32_t column, float value) const {
    const int64_t at = row * out_stride + column;
    if (out_bf16) {
      static_cast<__nv_bfloat16*>(out)[at] = __float2bfloat16_rn(value);
    } else {
      static_cast<float*>(out)[at] = value;
    }
  }
  // The sum of a query's probabilities, which are relative to `maximum` (in units of log2 e), with
  // that of its head's sink; `column` is one of the head's. For the result over all rows only,
  // since a sink counts once.
  __device__ float WithSink(int32_t column, float maximum, float sum) const {
    if (sinks == nullptr) return sum;
    // Any larger sink leaves nothing of the rows' values either, and this sum is finite.
    return sum + Exp2(fminf(sinks[column / head_dim] * kLog2E - maximum, 126.0f));
  }
  // Stores the log-sum of the query head whose output begins at `column`, with its sink's; `sum` is
  // without it.
  __device__ void StoreLogSum(int64_t row, int32_t column, float maximum, float sum) const {
    constexpr float kLn2 = 0.693147182f;
    if (log_sums == nullptr) return;
    const int32_t head = column / head_dim;
    float log_sum = (maximum + __log2f(sum)) * kLn2;
    if (sinks != nullptr) {
      const float sink = sinks[head], apart = fabsf(log_sum - sink);
      log_sum = fmaxf(log_sum, sink) + __log2f(1 + Exp2(-apart * kLog2E)) * kLn2;
    }
    log_sums[row * q_heads + head] = log_sum;
  }
  // Stores to an even column and the next one.
  __device__ void Store(int64_t row, int32_t column, float low, float high) const {
    const int64_t at = row * out_stride + column;
    if (out_bf16) {
      *reinterpret_cast<uint32_t*>(static_cast<__nv_bfloat16*>(out) + at) = PackBf16(low, high);
    } else {
      *reinterpret_cast<float2*>(static_cast<float*>(out) + at) = make_float2(low, high);
    }
  }
#endif
};

}  // namespace litecache::ops::cuda
