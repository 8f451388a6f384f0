#pragma once

// Copies rows between the store and the device, in token order or in cluster order.
#include "lab/namespaces.h"
#include "lab/policies/retroinfer/ops/cluster_problem.cuh"

namespace litecache::lab::ops::cuda::clusters {

// Number of blocks that read the store over the link (its rate by the number of blocks:
// lab/notes/gpu/transfer.md).
constexpr int kLinkBlocks = 16;
constexpr int kLinkThreads = 1024;

// Copies a warp's share of rows [begin, end) of a list, source(row) to target(row): the warps of
// the grid process one list together, because adjacent reads are faster over the link.
template <class Source, class Target>
__device__ __forceinline__ void MoveShare(const RowFormat& format, int32_t begin, int32_t end,
                                          const Source& source, const Target& target) {
  const int32_t warps = gridDim.x * (kLinkThreads / 32);
  const int32_t warp = threadIdx.x / 32 * gridDim.x + blockIdx.x;
  const int32_t at_once = RowsAtOnce(format);
  for (int32_t row = begin + warp * at_once; row < end; row += warps * at_once) {
    MoveSome(
        min(at_once, end - row), format, format, [&](int32_t r) { return source(row + r); },
        [&](int32_t r) { return target(row + r); });
  }
}

static __global__ void __launch_bounds__(kLinkThreads, 1)
    LoadRowsKernel(const __grid_constant__ Problem p) {
  const ListPages& source = p.work.source;
  for (int32_t list = 0; list < p.work.lists; ++list) {
    std::byte* rows = p.Of(list).rows;
    MoveShare(
        source.format, 0, p.work.count,
        [&](int32_t i) {
          return RowAt(source, p.work.source_list + list, SourceRow(source, p.work.begin + i),
                       p.row_bytes);
        },
        [&](int32_t i) { return rows + int64_t{i} * p.row_bytes; });
  }
}

static __global__ void __launch_bounds__(kLinkThreads, 1)
    StoreRowsKernel(const __grid_constant__ Problem p, const StoreExtent extent) {
  for (int32_t list = 0; list < p.work.lists; ++list) {
    const Scratch s = p.Of(list);
    const int32_t* order = p.work.order + int64_t{list} * p.work.count;
    MoveShare(
        p.work.store.format, extent.from, extent.to,
        [&](int32_t row) {
          const int32_t i = row - p.work.begin;
          return TokenRow(p, s, list, i >= 0 && i < p.work.count ? order[i] : i);
        },
        [&](int32_t row) {
          return RowAt(p.work.store, p.work.first_list + list, row, p.row_bytes);
        });
  }
}

// Copies rows that were loaded in cluster order back to their tokens' positions.
static __global__ void __launch_bounds__(kLinkThreads, 1)
    RestoreRowsKernel(const __grid_constant__ Problem p) {
  for (int32_t list = 0; list < p.work.lists; ++list) {
    const Scratch s = p.Of(list);
    const int32_t* order = p.work.order + int64_t{list} * p.work.count;
    MoveShare(
        p.work.store.format, 0, p.work.count,
        [&](int32_t i) { return s.rows + int64_t{i} * p.row_bytes; },
        [&](int32_t i) {
          return RowAt(p.work.store, p.work.first_list + list, p.work.begin + order[i],
                       p.row_bytes);
        });
  }
}

}  // namespace litecache::lab::ops::cuda::clusters
