// The k largest of the keys that the blocks of a team hold, in ascending order of index; equal
// keys: the lower index first. Exact and deterministic for any team.
#pragma once

#include <cooperative_groups.h>

#include <cstdint>

#include "ops/slots/litecache_pair.cuh"

namespace litecache::ops::cuda {

constexpr int kTeamThreads = 1024;  // in each block
constexpr int kTeamWarps = kTeamThreads / 32;
constexpr int kMaxTeam = 16;  // one lane each

// Unsigned integers in the scores' order: 0 and -0 equal, NaN the lowest.
__device__ __forceinline__ uint32_t OrderedKey(float score) {
  if (isnan(score)) return 0;
  const uint32_t bits = __float_as_uint(score + 0.0f);
  return (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
}

// A team of one block.
struct BlockTeam {
  static constexpr int rank = 0, size = 1;
  __device__ void Sync() const { __syncthreads(); }
  template <typename T>
  __device__ const T* Of(const T* shared, int) const {
    return shared;
  }
};

// The blocks of a thread block cluster, which read each other's shared memory. A single block if
// the launch has no clusters, as on every GPU before sm_90.
struct ClusterTeam {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  int rank = static_cast<int>(cooperative_groups::this_cluster().block_rank());
  int size = static_cast<int>(cooperative_groups::this_cluster().num_blocks());
  // Synchronizes the cluster's threads, and orders their accesses to shared and global memory.
  __device__ void Sync() const { cooperative_groups::this_cluster().sync(); }
  template <typename T>
  __device__ const T* Of(const T* shared, int block) const {
    return cooperative_groups::this_cluster().map_shared_rank(const_cast<T*>(shared), block);
  }
#else
  int rank = 0, size = 1;
  __device__ void Sync() const { __syncthreads(); }
  template <typename T>
  __device__ const T* Of(const T* shared, int) const {
    return shared;
  }
#endif
};

constexpr int kTopKBins = 256;

struct TopKShared {
  // Two, because others may still read the previous pass's while this one's is written.
  uint32_t histogram[2][kTopKBins];
  uint32_t totals[kTopKBins];
  int32_t bin, above, inside;
  int32_t warp_greater[kTeamWarps], warp_equal[kTeamWarps];
  int32_t greater, equal;              // in this block
  int32_t first_greater, first_equal;  // in the preceding blocks
};

// How many of a team's keys are at least `least`; arguments as for FindThreshold.
template <class Team, class KeyAt>
__device__ int32_t CountReaching(const Team& team, TopKShared& shared, int32_t count,
                                 uint32_t least, const KeyAt& key_at) {
  const int32_t thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
  int32_t reaching = 0;
  for (int32_t i = thread; i < count; i += kTeamThreads) reaching += key_at(i) >= least ? 1 : 0;
  reaching = __reduce_add_sync(kFullMask, reaching);
  __syncthreads();  // earlier calls are done with `shared`
  if (lane == 0) shared.warp_greater[warp] = reaching;
  __syncthreads();
  if (warp == 0) {
    reaching = __reduce_add_sync(kFullMask, shared.warp_greater[lane]);
    if (lane == 0) shared.greater = reaching;
  }
  team.Sync();
  const bool exists = lane < team.size;
  return __reduce_add_sync(kFullMask, exists ? *team.Of(&shared.greater, lane) : 0);
}

// Which keys are selected: those above `key`, and the first `ties` equal to it.
struct Threshold {
  uint32_t key = 0;
  int32_t ties = 0;
};

// key_at(i), i < count: this block's keys, blocks in the order of their ranks; 1 <= k <= the team's
// number of keys. A radix selection, 8 bits per pass. Called by all threads of all blocks, kThreads
// per block, at least kTopKBins.
template <int kThreads = kTeamThreads, class Team, class KeyAt>
__device__ Threshold FindThreshold(const Team& team, TopKShared& shared, int32_t count, int32_t k,
                                   const KeyAt& key_at) {
  const int thread = threadIdx.x, lane = thread % 32;
  uint32_t prefix = 0, mask = 0;
  int32_t left = k;
  for (int pass = 0; pass < 4; ++pass) {
    const int shift = 24 - 8 * pass;
    uint32_t* histogram = shared.histogram[pass & 1];
    __syncthreads();  // earlier calls are done with `shared`
    if (thread < kTopKBins) histogram[thread] = 0;
    __syncthreads();
    for (int32_t i = thread; i < count; i += kThreads) {
      const uint32_t key = key_at(i);
      // The hardware merges additions of several lanes to the same bin.
      if ((key & mask) == prefix) atomicAdd(histogram + (key >> shift & (kTopKBins - 1)), 1u);
    }
    team.Sync();
    if (thread < kTopKBins) {
      uint32_t total = 0;
#pragma unroll
      for (int block = 0; block < kMaxTeam; ++block) {  // all loads at once
        if (block < team.size) total += team.Of(histogram, block)[thread];
      }
      shared.totals[thread] = total;
    }
    __syncthreads();
    if (thread < 32) {  // finds the bin of the left-th largest key: lanes take bins from above
      int32_t of_lane = 0;
      for (int b = 0; b < kTopKBins / 32; ++b) {
        of_lane += static_cast<int32_t>(shared.totals[kTopKBins - 1 - (lane * 8 + b)]);
      }
      int32_t all;
      int32_t above = WarpExclusiveSum(of_lane, &all);
      if (above < left && left <= above + of_lane) {
        for (int b = 0; b < kTopKBins / 32; ++b) {
          const int bin = kTopKBins - 1 - (lane * 8 + b);
          const auto inside = static_cast<int32_t>(shared.totals[bin]);
          if (left <= above + inside) {
            shared.bin = bin;
            shared.above = above;
            shared.inside = inside;
            break;
          }
          above += inside;
        }
      }
    }
    __syncthreads();
    prefix |= static_cast<uint32_t>(shared.bin) << shift;
    mask |= static_cast<uint32_t>(kTopKBins - 1) << shift;
    left -= shared.above;
    // Everything with this prefix is selected: the remaining bits do not matter.
    if (left == shared.inside) return {prefix, INT32_MAX};
  }
  return {prefix, left};
}

// Calls emit(rank among the selected, i) for the keys of this block that `threshold` selects.
template <int kThreads = kTeamThreads, class Team, class KeyAt, class Emit>
__device__ void TakeAbove(const Team& team, TopKShared& shared, int32_t count,
                          const Threshold& threshold, const KeyAt& key_at, const Emit& emit) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  // Each warp has consecutive keys.
  const int32_t a_warp = (count + kThreads - 1) / kThreads * 32;
  const int32_t begin = min(count, warp * a_warp), end = min(count, begin + a_warp);
  int32_t greater = 0, equal = 0;
  for (int32_t base = begin; base < end; base += 32) {
    const int32_t i = base + lane;
    const uint32_t key = i < end ? key_at(i) : 0;
    greater += __popc(__ballot_sync(kFullMask, i < end && key > threshold.key));
    equal += __popc(__ballot_sync(kFullMask, i < end && key == threshold.key));
  }
  __syncthreads();
  if (lane == 0) {
    shared.warp_greater[warp] = greater;
    shared.warp_equal[warp] = equal;
  }
  __syncthreads();
  if (warp == 0) {
    int32_t greater_total, equal_total;
    const bool exists = lane < kThreads / 32;
    const int32_t greater_before =
        WarpExclusiveSum(exists ? shared.warp_greater[lane] : 0, &greater_total);
    const int32_t equal_before =
        WarpExclusiveSum(exists ? shared.warp_equal[lane] : 0, &equal_total);
    shared.warp_greater[lane] = greater_before;
    shared.warp_equal[lane] = equal_before;
    if (lane == 0) {
      shared.greater = greater_total;
      shared.equal = equal_total;
    }
  }
  team.Sync();
  if (warp == 0) {
    const bool before = lane < team.rank;
    const int32_t first_greater =
        __reduce_add_sync(kFullMask, before ? *team.Of(&shared.greater, lane) : 0);
    const int32_t first_equal =
        __reduce_add_sync(kFullMask, before ? *team.Of(&shared.equal, lane) : 0);
    if (lane == 0) {
      shared.first_greater = first_greater;
      shared.first_equal = first_equal;
    }
  }
  __syncthreads();
  greater = shared.first_greater + shared.warp_greater[warp];
  equal = shared.first_equal + shared.warp_equal[warp];
  const unsigned below = (1u << lane) - 1;
  for (int32_t base = begin; base < end; base += 32) {
    const int32_t i = base + lane;
    const uint32_t key = i < end ? key_at(i) : 0;
    const bool is_greater = i < end && key > threshold.key;
    const bool is_equal = i < end && key == threshold.key;
    const unsigned greaters = __ballot_sync(kFullMask, is_greater);
    const unsigned equals = __ballot_sync(kFullMask, is_equal);
    const int32_t equal_before = equal + __popc(equals & below);
    if (is_greater || (is_equal && equal_before < threshold.ties)) {
      emit(greater + __popc(greaters & below) + min(equal_before, threshold.ties), i);
    }
    greater += __popc(greaters);
    equal += __popc(equals);
  }
}

}  // namespace litecache::ops::cuda
