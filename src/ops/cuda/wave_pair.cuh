// What kernels over a wave index share: elements of rows, sizes of clusters.
#pragma once

#include <cuda_bf16.h>

#include "ops/cuda/lite_pair.cuh"
#include "ops/cuda/paged_rows.cuh"
#include "ops/cuda/wave_index.h"

namespace litecache::ops::cuda {

// Element i of a row: K first, then V.
__device__ __forceinline__ float WaveElement(const RowFormat& format, const std::byte* row,
                                             int32_t i) {
  return format.encoding == RowEncoding::kBF16
             ? __bfloat162float(reinterpret_cast<const __nv_bfloat16*>(row)[i])
             : reinterpret_cast<const float*>(row)[i];
}

// Tokens of a cluster: behind its page's rows.
__device__ __forceinline__ int32_t ClusterSize(const RowList& index, int32_t cluster) {
  const int32_t block = index.per_page.Quotient(cluster);
  const std::byte* page = index.pages[int64_t{block} * index.lists];
  const auto* sizes =
      reinterpret_cast<const int32_t*>(page + int64_t{index.page_rows} * index.row_bytes);
  return sizes[cluster - block * index.page_rows];
}

__device__ __forceinline__ int32_t CeilBlocks(int32_t rows, int32_t block_tokens) {
  return (rows + block_tokens - 1) / block_tokens;
}

}  // namespace litecache::ops::cuda
