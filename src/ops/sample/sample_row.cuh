// A row of logits as seen by the team of blocks that samples it, and sums over its threads.
#pragma once

#include <cmath>
#include <cstdint>

#include "ops/sample/exp_weight.h"
#include "ops/sample/sample_cuda.h"
#include "ops/select/litecache_select.cuh"

namespace litecache::ops::cuda::sampling {

inline constexpr int32_t kWeightBlock =
    1024;  // engine/logits.h: tokens whose weights are summed in float
inline constexpr int32_t kSumLanes = 16;  // engine/logits.cc: partial sums of such a block
inline constexpr int32_t kMostBlocks = kTeamThreads;  // in a vocabulary: one thread each
inline constexpr int32_t kBars = 8;                   // bars that one pass sums the tokens above
inline constexpr int32_t kPerThread = kMostCandidates / kTeamThreads;

struct Best {
  float value = -INFINITY;
  int32_t id = INT32_MAX;
  int32_t finite = 1;

  __device__ void Take(float other, int32_t other_id) {
    if (other > value || (other == value && other_id < id)) {
      value = other;
      id = other_id;
    }
  }
};

struct SampleShared {
  TopKShared top_k;
  Best warp_best[kTeamWarps];
  Best best[2];  // in this block
  Best team_best;
  double warp_sums[kTeamWarps][kBars];
  double sums[3][kBars];
  double team_sums[kBars];
  int32_t collected;
  float all_block_sums[kMostBlocks];  // in rank 0: the whole team's
  double warp_scan[kTeamWarps];
  FirstArrival warp_first[kTeamWarps];
  FirstArrival first;  // in this block
};

template <typename T>
__device__ T* OfRank(const ClusterTeam& team, T* shared, int rank) {
  return const_cast<T*>(team.Of(shared, rank));
}

// The best of all tokens of the row, on every thread of the team. slot: a different one for each
// use, since another block may still be reading the previous one's.
__device__ inline Best TeamBest(const ClusterTeam& team, SampleShared& shared, Best best,
                                int slot) {
  const auto warp_best = [&] {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
      const float value = __shfl_xor_sync(kFullMask, best.value, step);
      const int32_t id = __shfl_xor_sync(kFullMask, best.id, step);
      best.Take(value, id);
    }
    best.finite = __all_sync(kFullMask, best.finite);
  };
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  warp_best();
  __syncthreads();
  if (lane == 0) shared.warp_best[warp] = best;
  __syncthreads();
  if (warp == 0) {
    best = shared.warp_best[lane];
    warp_best();
    if (lane == 0) shared.best[slot] = best;
  }
  team.Sync();
  if (warp == 0) {
    best = lane < team.size ? *team.Of(&shared.best[slot], lane) : Best();
    warp_best();
    if (lane == 0) shared.team_best = best;
  }
  __syncthreads();
  return shared.team_best;
}

// Sums of kCount values over the team's threads, on every thread; slots as for TeamBest.
template <int kCount>
__device__ void TeamSums(const ClusterTeam& team, SampleShared& shared, double (&values)[kCount],
                         int slot) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const double sum = WarpSum(values[i]);
    if (lane == 0) shared.warp_sums[warp][i] = sum;
  }
  __syncthreads();
  if (warp < kCount) {
    const double sum = WarpSum(shared.warp_sums[lane][warp]);
    if (lane == 0) shared.sums[slot][warp] = sum;
  }
  team.Sync();
  if (warp < kCount) {
    const double sum = WarpSum(lane < team.size ? *team.Of(&shared.sums[slot][warp], lane) : 0.0);
    if (lane == 0) shared.team_sums[warp] = sum;
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kCount; ++i) values[i] = shared.team_sums[i];
}

// The sum of the values of the block's preceding threads; total: of all its threads.
__device__ inline double BlockExclusiveSum(SampleShared& shared, double value, double* total) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const auto inclusive = [lane](double sum) {
#pragma unroll
    for (int offset = 1; offset < 32; offset *= 2) {
      const double below = __shfl_up_sync(kFullMask, sum, offset);
      if (lane >= offset) sum += below;
    }
    return sum;
  };
  const double sum = inclusive(value);
  __syncthreads();
  if (lane == 31) shared.warp_scan[warp] = sum;
  __syncthreads();
  const double warps = inclusive(shared.warp_scan[lane]);
  *total = __shfl_sync(kFullMask, warps, 31);
  const double before = __shfl_sync(kFullMask, warps, warp > 0 ? warp - 1 : 0);
  return (warp > 0 ? before : 0.0) + sum - value;
}

__device__ __forceinline__ float LogitOf(uint32_t ordered) {
  return __uint_as_float((ordered >> 31) != 0 ? ordered & 0x7fffffffu : ~ordered);
}

// One row: the data that all threads of its team share.
struct Job {
  const SampleRow& row;
  const float* raw;  // [vocab], the model's
  int32_t vocab;
  float* x;  // [count], this block's tokens, after bias and penalties
  int32_t first, count;
  int32_t slice;  // tokens in a block, a multiple of kWeightBlock
  uint64_t* candidates;
};

__device__ inline void ApplyMask(const Job& job, const uint32_t* masks) {
  const uint32_t* mask = masks + job.row.mask_begin;
  for (int32_t i = threadIdx.x; i < job.count; i += kTeamThreads) {
    const int32_t token = job.first + i;
    if ((mask[token / 32] >> (token % 32) & 1u) == 0) job.x[i] = -INFINITY;
  }
  __syncthreads();
}

__device__ inline void ApplyChanges(const Job& job, const LogitChange* changes) {
  const SampleRow& row = job.row;
  const LogitChange* biases = changes + row.changes_begin;
  for (int32_t i = threadIdx.x; i < row.biases; i += kTeamThreads) {
    const int32_t t = biases[i].token - job.first;
    if (t >= 0 && t < job.count) job.x[t] = __fadd_rn(job.x[t], biases[i].bias);
  }
  __syncthreads();
  const LogitChange* seen = biases + row.biases;
  for (int32_t i = threadIdx.x; i < row.seen; i += kTeamThreads) {
    const int32_t t = seen[i].token - job.first;
    if (t < 0 || t >= job.count) continue;
    float logit = job.x[t];
    if (row.repetition_penalty != 1.0f) {
      logit = logit > 0 ? __fdiv_rn(logit, row.repetition_penalty)
                        : __fmul_rn(logit, row.repetition_penalty);
    }
    logit =
        __fsub_rn(logit, __double2float_rn(__dmul_rn(row.frequency_penalty, seen[i].generated)));
    if (seen[i].generated > 0) logit = __fsub_rn(logit, row.presence_penalty);
    job.x[t] = logit;
  }
  __syncthreads();
}

// exp((x - max) / temperature), as in engine::Weights.
__device__ __forceinline__ float Weight(const Job& job, float max, int32_t i) {
  return ExpOfNonPositive(__fmul_rn(__fsub_rn(job.x[i], max), job.row.inverse_temperature));
}

// The sum of all weights: of each kWeightBlock tokens in float, of those in double.
__device__ inline double SumWeights(const ClusterTeam& team, SampleShared& shared, const Job& job,
                                    float max) {
  const int lane = threadIdx.x % kSumLanes;
  const unsigned half = 0xffffu << (threadIdx.x % 32 / kSumLanes * kSumLanes);
  const int32_t blocks = (job.count + kWeightBlock - 1) / kWeightBlock;
  float* all = OfRank(team, &shared.all_block_sums[job.first / kWeightBlock], 0);
  for (int32_t b = threadIdx.x / kSumLanes; b < blocks; b += kTeamThreads / kSumLanes) {
    const int32_t begin = b * kWeightBlock, end = min(job.count, begin + kWeightBlock);
    const int32_t full = begin + (end - begin) / kSumLanes * kSumLanes;
    float of_lane = 0;
#pragma unroll 4
    for (int32_t i = begin; i < full; i += kSumLanes) {
      of_lane = __fadd_rn(of_lane, Weight(job, max, i + lane));
    }
    float sum = 0;
    for (int32_t i = full; i < end; ++i) sum = __fadd_rn(sum, Weight(job, max, i));
#pragma unroll
    for (int j = 0; j < kSumLanes; ++j) {
      sum = __fadd_rn(sum, __shfl_sync(half, of_lane, j, kSumLanes));
    }
    if (lane == 0) all[b] = sum;
  }
  team.Sync();
  const int32_t all_blocks = (job.vocab + kWeightBlock - 1) / kWeightBlock;
  const auto b = static_cast<int32_t>(threadIdx.x);
  const float mine = b < all_blocks ? team.Of(shared.all_block_sums, 0)[b] : 0.0f;
  double total;
  BlockExclusiveSum(shared, static_cast<double>(mine), &total);
  return total;
}

// The first arrival of all of the block's threads, on every thread.
__device__ inline FirstArrival BlockFirst(SampleShared& shared, FirstArrival first) {
  const auto warp_first = [&] {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
      const double time = __shfl_xor_sync(kFullMask, first.time, step);
      const int32_t token = __shfl_xor_sync(kFullMask, first.token, step);
      first.Take(time, token);
    }
  };
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  warp_first();
  __syncthreads();
  if (lane == 0) shared.warp_first[warp] = first;
  __syncthreads();
  first = shared.warp_first[lane];
  warp_first();
  return first;
}

}  // namespace litecache::ops::cuda::sampling
