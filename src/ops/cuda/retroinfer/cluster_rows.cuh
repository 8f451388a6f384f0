#pragma once

// Rows between the store and the device, by the order of their tokens or of their clusters.
#include "ops/cuda/retroinfer/cluster_problem.cuh"

namespace litecache::ops::cuda::clusters {

// Blocks that read the store through the link (hardware.md).
constexpr int kLinkBlocks = 16;
constexpr int kLinkThreads = 1024;

// List after list, by all warps of the grid: the link likes reads that lie together.
static __global__ void __launch_bounds__(kLinkThreads, 1)
    LoadRowsKernel(const __grid_constant__ Problem p) {
  const int32_t warps = gridDim.x * (kLinkThreads / 32);
  const int32_t warp = threadIdx.x / 32 * gridDim.x + blockIdx.x;
  const ListPages& source = p.work.source;
  const int32_t at_once = RowsAtOnce(source.format);
  for (int32_t list = 0; list < p.work.lists; ++list) {
    std::byte* rows = p.Of(list).rows;
    for (int32_t i = warp * at_once; i < p.work.count; i += warps * at_once) {
      MoveSome(
          min(at_once, p.work.count - i), source.format, source.format,
          [&](int32_t r) {
            return RowAt(source, p.work.source_list + list, SourceRow(source, p.work.begin + i + r),
                         p.row_bytes);
          },
          [&](int32_t r) { return rows + int64_t{i + r} * p.row_bytes; });
    }
  }
}

static __global__ void __launch_bounds__(kLinkThreads, 1)
    StoreRowsKernel(const __grid_constant__ Problem p, const StoreExtent extent) {
  const int32_t warps = gridDim.x * (kLinkThreads / 32);
  const int32_t warp = threadIdx.x / 32 * gridDim.x + blockIdx.x;
  const RowFormat& format = p.work.store.format;
  const int32_t at_once = RowsAtOnce(format);
  for (int32_t list = 0; list < p.work.lists; ++list) {
    const Scratch s = p.Of(list);
    const int32_t* order = p.work.order + int64_t{list} * p.work.count;
    for (int32_t row = extent.from + warp * at_once; row < extent.to; row += warps * at_once) {
      MoveSome(
          min(at_once, extent.to - row), format, format,
          [&](int32_t r) {
            const int32_t i = row + r - p.work.begin;
            return TokenRow(p, s, list, i >= 0 && i < p.work.count ? order[i] : i);
          },
          [&](int32_t r) {
            return RowAt(p.work.store, p.work.first_list + list, row + r, p.row_bytes);
          });
    }
  }
}

// Rows that were loaded in the order of their clusters go back to where their tokens were.
static __global__ void __launch_bounds__(kLinkThreads, 1)
    RestoreRowsKernel(const __grid_constant__ Problem p) {
  const int32_t warps = gridDim.x * (kLinkThreads / 32);
  const int32_t warp = threadIdx.x / 32 * gridDim.x + blockIdx.x;
  const RowFormat& format = p.work.store.format;
  const int32_t at_once = RowsAtOnce(format);
  for (int32_t list = 0; list < p.work.lists; ++list) {
    const Scratch s = p.Of(list);
    const int32_t* order = p.work.order + int64_t{list} * p.work.count;
    for (int32_t i = warp * at_once; i < p.work.count; i += warps * at_once) {
      MoveSome(
          min(at_once, p.work.count - i), format, format,
          [&](int32_t r) { return s.rows + int64_t{i + r} * p.row_bytes; },
          [&](int32_t r) {
            return RowAt(p.work.store, p.work.first_list + list, p.work.begin + order[i + r],
                         p.row_bytes);
          });
    }
  }
}

}  // namespace litecache::ops::cuda::clusters
