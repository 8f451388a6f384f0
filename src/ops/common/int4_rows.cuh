// Rows in 4 bits (ops/common/row_format.h) with an even head_dim: both codes of a byte belong to
// the same part.
#pragma once

#include <cuda_fp16.h>

#include <cstddef>
#include <cstdint>

#include "ops/common/row_format.h"

namespace litecache::ops::cuda {

__device__ __forceinline__ int32_t Int4Groups(int32_t d) {
  return (d + static_cast<int32_t>(kInt4Group) - 1) / static_cast<int32_t>(kInt4Group);
}

// Minimum and step of a group of K (part 0) or V (part 1).
__device__ __forceinline__ float2 Int4Range(const std::byte* row, int32_t d, int32_t part,
                                            int32_t group) {
  // Two loads, because rows are aligned to 2 bytes only if head_dim is no multiple of 4.
  const auto* halves =
      reinterpret_cast<const unsigned short*>(row + d) + 2 * (part * Int4Groups(d) + group);
  return {__half2float(__ushort_as_half(__ldcg(halves))),
          __half2float(__ushort_as_half(__ldcg(halves + 1)))};
}

__device__ __forceinline__ float Int4Value(uint32_t code, float2 range) {
  return fmaf(static_cast<float>(code), range.y, range.x);
}

}  // namespace litecache::ops::cuda
