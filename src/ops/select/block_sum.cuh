// Prefix sums over a block's threads.
#pragma once

#include "ops/select/team_top_k.cuh"

namespace litecache::ops::cuda {

// The sum over the preceding threads; total: over all. warp_sums [kThreads / 32], shared.
template <int kThreads = kTeamThreads>
__device__ inline int32_t BlockExclusiveSum(int32_t x, int32_t* warp_sums, int32_t* total) {
  int32_t of_warp;
  const int32_t in_warp = WarpExclusiveSum(x, &of_warp);
  __syncthreads();
  if (threadIdx.x % 32 == 0) warp_sums[threadIdx.x / 32] = of_warp;
  __syncthreads();
  int32_t before = 0, all = 0;
  for (int w = 0; w < kThreads / 32; ++w) {
    const int32_t sum = warp_sums[w];
    before += w < static_cast<int>(threadIdx.x / 32) ? sum : 0;
    all += sum;
  }
  *total = all;
  return before + in_warp;
}

}  // namespace litecache::ops::cuda
