// A bitmap of positions in the shared memory of a cluster's blocks, for kernels that visit all
// slots of a head. They use few threads and little memory per SM, so that they run beside products
// and attention instead of waiting for a free SM. sm_90.
#pragma once

#include <algorithm>
#include <bit>

#include "ops/select/team_top_k.cuh"

namespace litecache::ops::cuda {

constexpr int kClusterBlocks = 8;
constexpr int kClusterThreads = 256;  // in each block
constexpr int kClusterWarps = kClusterThreads / 32;

// Kernels for clusters of kClusterBlocks blocks.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#define LC_CLUSTER
#else
#define LC_CLUSTER __cluster_dims__(8, 1, 1)
#endif
static_assert(kClusterBlocks == 8);

// Words of the bitmap in a block: 1 << shift, at least as many as threads.
inline int ClusterBitmapShift(int64_t max_context) {
  const auto words = static_cast<uint64_t>((max_context + 31) / 32);
  const uint64_t a_block = (words + kClusterBlocks - 1) / kClusterBlocks;
  const uint64_t least = kClusterThreads;
  return std::countr_zero(std::bit_ceil(std::max(a_block, least)));
}
inline size_t ClusterBitmapBytes(int shift) { return size_t{4} << shift; }
// Dynamic shared memory that needs no attribute, in addition to the kernels' static shared memory.
constexpr size_t kMaxClusterBytes = size_t{40} << 10;

struct ClusterBitmap {
  uint32_t* own;  // [1 << shift]
  int shift;

  __device__ int32_t OwnWords() const { return 1 << shift; }
  __device__ void Clear() const {
    for (int32_t w = threadIdx.x; w < OwnWords(); w += kClusterThreads) own[w] = 0;
  }
  __device__ uint32_t* Word(const ClusterTeam& team, int32_t word) const {
    return const_cast<uint32_t*>(team.Of(own + (word & (OwnWords() - 1)), word >> shift));
  }
  __device__ void Set(const ClusterTeam& team, int32_t position) const {
    atomicOr(Word(team, position / 32), 1u << position % 32);
  }
  // Clears the bit; returns whether it was set.
  __device__ bool TakeAway(const ClusterTeam& team, int32_t position) const {
    const uint32_t bit = 1u << position % 32;
    return (atomicAnd(Word(team, position / 32), ~bit) & bit) != 0;
  }
};

// The sum of `*own` over the blocks before this one, and over all; call after the Sync() that
// follows writing it.
struct ClusterSums {
  int32_t before = 0, all = 0;
};
__device__ inline ClusterSums SumOverCluster(const ClusterTeam& team, const int32_t* own) {
  ClusterSums sums;
#pragma unroll
  for (int b = 0; b < kClusterBlocks; ++b) {
    const int32_t of_block = *team.Of(own, b);
    sums.before += b < team.rank ? of_block : 0;
    sums.all += of_block;
  }
  return sums;
}

}  // namespace litecache::ops::cuda
