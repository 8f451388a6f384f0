#pragma once

// Shared by the kernels that build clusters: the work and its scratch, and the addresses of rows.
#include <cuda_bf16.h>

#include <cstddef>
#include <cstdint>

#include "lab/namespaces.h"
#include "lab/policies/retroinfer/ops/cluster_build_cuda.h"
#include "ops/transfer/move_rows.cuh"

namespace litecache::lab::ops::cuda::clusters {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;

inline int32_t PaddedDim(int64_t d) { return d <= 64 ? 64 : d <= 128 ? 128 : 256; }

// One list's part of the scratch.
struct Scratch {
  std::byte* rows;         // [count][row_bytes], if they are loaded
  __nv_bfloat16* points;   // [count][padded]: centred keys
  __nv_bfloat16* targets;  // [clusters][padded]: centroids, rounded
  double* sums;            // [d] of all keys
  float* centroids;        // [clusters][d], centred
  int32_t* assignment;     // [count]
  int32_t* ranks;          // [count] position within the cluster
  int32_t* order;          // [count] tokens, cluster after cluster
  int32_t* counts;         // [clusters]
  int32_t* offsets;        // [clusters + 1]
};

struct Problem {
  ClusterBuildWork work;
  int32_t d = 0, padded = 0, row_bytes = 0;
  int32_t segment_tokens = 0, segment_clusters = 0;
  int64_t list_bytes = 0;

  __host__ __device__ static int64_t Aligned(int64_t bytes) { return (bytes + 255) / 256 * 256; }
  // Appends an array; returns its offset.
  __host__ __device__ static int64_t Place(int64_t* at, int64_t bytes) {
    const int64_t begin = *at;
    *at += Aligned(bytes);
    return begin;
  }
  __host__ __device__ Scratch Of(int32_t list, int64_t* size = nullptr) const {
    auto* base = static_cast<std::byte*>(work.scratch) + list * list_bytes;
    const int64_t n = work.count, c = work.clusters;
    int64_t at = 0;
    Scratch s;
    s.rows = base + Place(&at, work.load ? n * row_bytes : 0);
    s.points = reinterpret_cast<__nv_bfloat16*>(base + Place(&at, n * padded * 2));
    s.targets = reinterpret_cast<__nv_bfloat16*>(base + Place(&at, c * padded * 2));
    s.sums = reinterpret_cast<double*>(base + Place(&at, int64_t{8} * d));
    s.centroids = reinterpret_cast<float*>(base + Place(&at, 4 * c * d));
    s.assignment = reinterpret_cast<int32_t*>(base + Place(&at, 4 * n));
    s.ranks = reinterpret_cast<int32_t*>(base + Place(&at, 4 * n));
    s.order = reinterpret_cast<int32_t*>(base + Place(&at, 4 * n));
    s.counts = reinterpret_cast<int32_t*>(base + Place(&at, 4 * c));
    s.offsets = reinterpret_cast<int32_t*>(base + Place(&at, 4 * (c + 1)));
    if (size != nullptr) *size = at;
    return s;
  }
};

inline Problem MakeProblem(const ClusterBuildWork& work) {
  Problem p;
  const RowFormat& format = work.store.format;
  p.work = work;
  p.d = static_cast<int32_t>(format.head_dim);
  p.padded = PaddedDim(p.d);
  p.row_bytes = static_cast<int32_t>(format.row_bytes());
  p.segment_tokens = work.count / work.segments;
  p.segment_clusters = work.clusters / work.segments;
  p.Of(0, &p.list_bytes);
  return p;
}

inline __device__ std::byte* RowAt(const ListPages& table, int32_t list, int32_t row,
                                   int32_t row_bytes) {
  const int32_t block = row / table.page_rows;
  return table.pages[int64_t{block} * table.lists + list] +
         int64_t{row - block * table.page_rows} * row_bytes;
}

__device__ __forceinline__ int32_t SourceRow(const ListPages& source, int32_t token) {
  return source.ring == 0 || token < source.sink ? token : source.sink + token % source.ring;
}

// Row of the run's i-th token that is to be clustered.
__device__ __forceinline__ const std::byte* TokenRow(const Problem& p, const Scratch& s,
                                                     int32_t list, int32_t i) {
  if (p.work.load) return s.rows + int64_t{i} * p.row_bytes;
  return RowAt(p.work.source, p.work.source_list + list, SourceRow(p.work.source, p.work.begin + i),
               p.row_bytes);
}

// Element i of a row: K first, then V.
__device__ __forceinline__ float Element(const RowFormat& format, const std::byte* row, int32_t i) {
  return format.encoding == RowEncoding::kBF16
             ? __bfloat162float(reinterpret_cast<const __nv_bfloat16*>(row)[i])
             : reinterpret_cast<const float*>(row)[i];
}

}  // namespace litecache::lab::ops::cuda::clusters
