// Where a key's codes lie in its block (KeysFormat), and the means that are keys' centres.
#pragma once

#include <cuda_fp16.h>

#include "ops/select/keys_select.h"
#include "ops/slots/litecache_pair.cuh"

namespace litecache::ops::cuda {

constexpr int32_t kKeysBlock = static_cast<int32_t>(KeysFormat::kBlockTokens);
constexpr int32_t kKeysCentre = static_cast<int32_t>(KeysFormat::kCentreTokens);

// KeysFormat as kernels take it.
struct KeysLayout {
  int32_t bits = 0, words = 0, stride = 0;
  float step = 0;

  __host__ __device__ int32_t parts() const { return 8 / bits; }
  __host__ __device__ int32_t groups() const { return words * parts(); }
  __host__ __device__ int32_t offset() const { return (1 << bits) - 1; }
  __host__ __device__ int64_t block_bytes() const { return kKeysBlock * (4 * int64_t{words} + 2); }
};

inline KeysLayout LayoutOf(const KeysFormat& format) {
  return {.bits = static_cast<int32_t>(format.bits),
          .words = static_cast<int32_t>(format.words()),
          .stride = static_cast<int32_t>(format.stride()),
          .step = format.step()};
}

__device__ __forceinline__ const __half* KeyScalesOf(const KeysLayout& layout,
                                                     const uint32_t* block) {
  return reinterpret_cast<const __half*>(block + int64_t{layout.words} * kKeysBlock);
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
