// Codes of queries, for selections by hash codes.
#pragma once

#include "ops/cuda/lite_select.cuh"
#include "ops/cuda/vectors.cuh"

namespace litecache::ops::cuda {

constexpr int kMaxHashWords = 64;

// Words w of the codes [group][words] with w % team.size == team.rank: a team's blocks share the
// products with the weights [kv_heads][head_dim][32 words]. code bit = (sum over c of q[c] *
// weight[c][bit] > 0), terms in the CPU's order. Nobody waits at the end.
__device__ inline void HashOwnWords(const ClusterTeam& team, const ScoreJob& job,
                                    const float* weights, int32_t words, uint32_t* codes) {
  const int32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int32_t d = job.shape.head_dim, group = job.shape.group;
  const int64_t bits = int64_t{32} * words;
  const float* weight = weights + job.target.head * d * bits;
  const int32_t own = (words - team.rank + team.size - 1) / team.size;
  // There are fewer products than warps, and each is long: all warps ask for the weights at once.
  for (int32_t item = warp; item < own * d; item += kTeamWarps) {
    const int32_t w = item / d * team.size + team.rank, c = item - item / d * d;
    AskFor(weight + c * bits + 32 * w + lane);
  }
  for (int32_t item = warp; item < own * group; item += kTeamWarps) {
    const int32_t w = item / group * team.size + team.rank, j = item % group;
    const float* q = job.target.q + j * d;
    const float* column = weight + 32 * w + lane;
    float sum = 0;
#pragma unroll 16
    for (int32_t c = 0; c < d; ++c) sum = fmaf(column[c * bits], q[c], sum);
    const uint32_t code = __ballot_sync(kFullMask, sum > 0);
    if (lane == 0) codes[j * words + w] = code;
  }
}

}  // namespace litecache::ops::cuda
