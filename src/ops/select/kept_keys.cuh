// How keys and queries are rotated, where a key's codes lie in its block (KeysFormat), and the
// means that are keys' centres.
#pragma once

#include <cuda_fp16.h>

#include "ops/select/keys_select.h"
#include "ops/slots/litecache_pair.cuh"

namespace litecache::ops::cuda {

constexpr int32_t kKeysBlock = static_cast<int32_t>(KeysFormat::kBlockTokens);
constexpr int32_t kKeysCentre = static_cast<int32_t>(KeysFormat::kCentreTokens);

// KeysFormat as kernels take it.
struct KeysLayout {
  int32_t bits = 0, words = 0;
  int32_t run = 0, runs = 0;  // of the rotation
  float step = 0;

  __host__ __device__ int32_t parts() const { return 8 / bits; }
  __host__ __device__ int32_t offset() const { return (1 << bits) - 1; }
  __host__ __device__ int64_t block_bytes() const { return kKeysBlock * (4 * int64_t{words} + 2); }
};

inline KeysLayout LayoutOf(const KeysFormat& format) {
  return {.bits = static_cast<int32_t>(format.bits),
          .words = static_cast<int32_t>(format.words()),
          .run = static_cast<int32_t>(format.run()),
          .runs = static_cast<int32_t>(format.head_dim / format.run()),
          .step = format.step()};
}

__device__ __forceinline__ const __half* KeyScalesOf(const KeysLayout& layout,
                                                     const uint32_t* block) {
  return reinterpret_cast<const __half*>(block + int64_t{layout.words} * kKeysBlock);
}

// What is left of KeysRotation where x [d] has been multiplied by the factors, by a warp, in shared
// memory: returns x, or, if there are several runs, x + d. Terms in the CPU's order.
__device__ inline float* RotateByWarp(const KeysLayout& layout, const float* cosines, int32_t d,
                                      float* x) {
  const int32_t lane = threadIdx.x % 32;
  __syncwarp();
  for (int32_t half = 1; half < layout.run; half *= 2) {
    for (int32_t pair = lane; pair < d / 2; pair += 32) {
      const int32_t in_half = pair & (half - 1), i = 2 * pair - in_half;
      const float a = x[i], b = x[i + half];
      x[i] = a + b;
      x[i + half] = a - b;
    }
    __syncwarp();
  }
  if (layout.runs == 1) return x;
  for (int32_t i = lane; i < d; i += 32) {
    const int32_t of_run = i / layout.run, in_run = i % layout.run;
    float sum = 0;
    for (int32_t r = 0; r < layout.runs; ++r) {
      sum = fmaf(cosines[r * layout.runs + of_run], x[r * layout.run + in_run], sum);
    }
    x[d + i] = sum;
  }
  __syncwarp();
  return x + d;
}

// Channel c of the mean of a block's keys, without their own centre; terms in the CPU's order.
__device__ inline float MeanOf(const KeysLayout& layout, const uint32_t* block, int32_t c) {
  const int32_t group = c / 4, word = group / layout.parts();
  const int32_t shift = 8 * (c % 4) + layout.bits * (group % layout.parts());
  const auto* words = reinterpret_cast<const uint4*>(block + word * kKeysBlock);
  const auto* scales = reinterpret_cast<const uint2*>(KeyScalesOf(layout, block));
  float sum = 0;
  const auto add = [&](uint32_t word, float scale) {
    const auto code = static_cast<int32_t>(word >> shift) & layout.offset();
    sum = fmaf(scale, static_cast<float>(2 * code - layout.offset()), sum);
  };
#pragma unroll
  for (int i = 0; i < kKeysBlock / 4; ++i) {
    const uint4 four = words[i];
    const uint2 of_four = scales[i];
    const float2 low = __half22float2(*reinterpret_cast<const __half2*>(&of_four.x));
    const float2 high = __half22float2(*reinterpret_cast<const __half2*>(&of_four.y));
    add(four.x, low.x);
    add(four.y, low.y);
    add(four.z, high.x);
    add(four.w, high.y);
  }
  return sum / kKeysBlock;
}

}  // namespace litecache::ops::cuda
