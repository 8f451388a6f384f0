// Shared by the kernels over a wave index: elements of rows, sizes of clusters, and the handling of
// a selection.
#pragma once

#include <cuda_bf16.h>

#include "lab/namespaces.h"
#include "lab/policies/retroinfer/ops/wave_index_cuda.h"
#include "ops/rows/paged_rows.cuh"
#include "ops/select/block_sum.cuh"
#include "ops/slots/litecache_pair.cuh"

namespace litecache::lab::ops::cuda {

// Element i of a row: K first, then V.
__device__ __forceinline__ float WaveElement(const RowFormat& format, const std::byte* row,
                                             int32_t i) {
  return format.encoding == RowEncoding::kBF16
             ? __bfloat162float(reinterpret_cast<const __nv_bfloat16*>(row)[i])
             : reinterpret_cast<const float*>(row)[i];
}

// Number of tokens in a cluster, stored after its page's rows.
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

struct TellShared {
  int32_t warp_sums[kTeamWarps];
  int32_t too_many;
};

// Determines the part of a pair's selection that fits the buffer, and publishes it to the host.
// Called by a whole block of kThreads; id_at(i): returns `ids`, which must be visible.
template <int kThreads = kTeamThreads, class IdAt>
__device__ inline void RecordChoice(const WaveShape& shape, const WaveLayer& layer,
                                    const RowList& index, int32_t pair, int32_t buffer_blocks,
                                    const WaveChoice& chosen, TellShared& shared,
                                    const IdAt& id_at) {
  const auto thread = static_cast<int32_t>(threadIdx.x);
  WaveChoice choice = chosen;
  if (thread == 0) shared.too_many = choice.ranked;
  for (int32_t base = 0, before = 0; base < choice.ranked; base += kThreads) {
    const int32_t i = base + thread;
    const int32_t blocks =
        i < choice.ranked ? CeilBlocks(ClusterSize(index, id_at(i)), shape.block_tokens) : 0;
    int32_t total;
    const int32_t with =
        before + BlockExclusiveSum<kThreads>(blocks, shared.warp_sums, &total) + blocks;
    if (i < choice.ranked && with > buffer_blocks) atomicMin(&shared.too_many, i);
    before += total;
  }
  __syncthreads();
  choice.retrieved = shared.too_many;
  if (thread == 0) layer.choices[pair] = layer.told_choices[pair] = choice;
  int32_t* told = layer.told_ids + int64_t{pair} * shape.max_chosen;
  const int32_t tell = shape.tell_all ? choice.count : choice.retrieved;
  for (int32_t i = thread; i < tell; i += kThreads) told[i] = id_at(i);
}

}  // namespace litecache::lab::ops::cuda
