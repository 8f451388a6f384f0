// Finds the best of a block's keys and the next ones after them together; ties go to the lower
// index. Does the work of FindThreshold and TakeAbove (team_top_k.cuh) for both in the same passes.
#pragma once

#include "lab/namespaces.h"
#include "ops/select/team_top_k.cuh"

namespace litecache::lab::ops::cuda {

struct BestAndNextShared {
  uint32_t histogram[2][kTopKBins];
  int32_t bin[2], above[2], inside[2];
  int32_t counts[4][kTeamWarps];  // per warp: above and at the first threshold, and the second
};

// Finds the bin that contains the left-th largest key, with one warp: lanes take bins from the top.
__device__ inline void FindBestBin(const uint32_t* histogram, int32_t left, int32_t* bin,
                                   int32_t* above_bin, int32_t* inside_bin) {
  const int lane = threadIdx.x % 32;
  constexpr int kBins = kTopKBins / 32;
  int32_t of_lane = 0;
  for (int b = 0; b < kBins; ++b) {
    of_lane += static_cast<int32_t>(histogram[kTopKBins - 1 - (lane * kBins + b)]);
  }
  int32_t all;
  int32_t above = WarpExclusiveSum(of_lane, &all);
  if (above >= left || left > above + of_lane) return;
  for (int b = 0; b < kBins; ++b) {
    const int at = kTopKBins - 1 - (lane * kBins + b);
    const auto inside = static_cast<int32_t>(histogram[at]);
    if (left <= above + inside) {
      *bin = at;
      *above_bin = above;
      *inside_bin = inside;
      return;
    }
    above += inside;
  }
}

// Calls best(order, i) for the `ranked` largest keys, in ascending order of i, and next(order, i)
// for the `unranked` largest of the others. 0 <= ranked, unranked; ranked + unranked <= count.
// Called by all kThreads threads of the block; keys [count] must be visible.
template <int kThreads, class Best, class Next>
__device__ void TakeBestAndNext(BestAndNextShared& shared, const uint32_t* keys, int32_t count,
                                int32_t ranked, int32_t unranked, const Best& best,
                                const Next& next) {
  const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
  // Nothing is above the largest possible key.
  Threshold thresholds[2] = {{UINT32_MAX, 0}, {UINT32_MAX, 0}};
  uint32_t prefix[2] = {0, 0}, mask = 0;
  int32_t left[2] = {ranked, ranked + unranked};
  bool done[2] = {left[0] == 0, left[1] == 0};
  for (int shift = 24; shift >= 0 && !(done[0] && done[1]); shift -= 8) {
    // Both process the same keys until their prefixes differ.
    const bool together = prefix[0] == prefix[1] && !done[0] && !done[1];
    __syncthreads();
    for (int i = thread; i < 2 * kTopKBins; i += kThreads) {
      shared.histogram[i / kTopKBins][i % kTopKBins] = 0;
    }
    __syncthreads();
    for (int32_t i = thread; i < count; i += kThreads) {
      const uint32_t key = keys[i], bin = key >> shift & (kTopKBins - 1);
      if (!done[0] && (key & mask) == prefix[0]) atomicAdd(&shared.histogram[0][bin], 1u);
      if (!done[1] && !together && (key & mask) == prefix[1]) {
        atomicAdd(&shared.histogram[1][bin], 1u);
      }
    }
    __syncthreads();
    if (warp < 2 && !done[warp]) {
      FindBestBin(shared.histogram[together ? 0 : warp], left[warp], &shared.bin[warp],
                  &shared.above[warp], &shared.inside[warp]);
    }
    __syncthreads();
    for (int w = 0; w < 2; ++w) {
      if (done[w]) continue;
      prefix[w] |= static_cast<uint32_t>(shared.bin[w]) << shift;
      left[w] -= shared.above[w];
      // All keys with this prefix are taken: their remaining bits do not matter.
      done[w] = left[w] == shared.inside[w];
      thresholds[w] = {prefix[w], done[w] ? INT32_MAX : left[w]};
    }
    mask |= static_cast<uint32_t>(kTopKBins - 1) << shift;
  }

  // Each warp has consecutive keys.
  const int32_t a_warp = (count + kThreads - 1) / kThreads * 32;
  const int32_t begin = min(count, warp * a_warp), end = min(count, begin + a_warp);
  int32_t counts[4] = {};
  for (int32_t i = begin + lane; i - lane < end; i += 32) {
    const uint32_t key = i < end ? keys[i] : 0;
#pragma unroll
    for (int w = 0; w < 2; ++w) {
      const uint32_t threshold = thresholds[w].key;
      counts[2 * w] += __popc(__ballot_sync(kFullMask, i < end && key > threshold));
      counts[2 * w + 1] += __popc(__ballot_sync(kFullMask, i < end && key == threshold));
    }
  }
  if (lane < 4) {
    shared.counts[lane][warp] = lane == 0   ? counts[0]
                                : lane == 1 ? counts[1]
                                : lane == 2 ? counts[2]
                                            : counts[3];
  }
  __syncthreads();
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    counts[k] = __reduce_add_sync(kFullMask, lane < warp ? shared.counts[k][lane] : 0);
  }
  const unsigned below = (1u << lane) - 1;
  for (int32_t i = begin + lane; i - lane < end; i += 32) {
    const uint32_t key = i < end ? keys[i] : 0;
    bool taken[2];
    int32_t order[2];
#pragma unroll
    for (int w = 0; w < 2; ++w) {
      const Threshold& t = thresholds[w];
      const unsigned above = __ballot_sync(kFullMask, i < end && key > t.key);
      const unsigned equal = __ballot_sync(kFullMask, i < end && key == t.key);
      const int32_t equal_before = counts[2 * w + 1] + __popc(equal & below);
      taken[w] = i < end && (key > t.key || (key == t.key && equal_before < t.ties));
      order[w] = counts[2 * w] + __popc(above & below) + min(equal_before, t.ties);
      counts[2 * w] += __popc(above);
      counts[2 * w + 1] += __popc(equal);
    }
    if (taken[0]) {
      best(order[0], i);
    } else if (taken[1]) {
      next(order[1] - order[0], i);
    }
  }
}

}  // namespace litecache::lab::ops::cuda
