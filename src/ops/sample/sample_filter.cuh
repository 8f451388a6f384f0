// Draws from a subset of the tokens: the k best, a nucleus, those that reach min-p.
#pragma once

#include <cmath>
#include <cstdint>

#include "ops/sample/sample_row.cuh"

namespace litecache::ops::cuda::sampling {

// How far below the best token, in units of the temperature, the tokens with a total weight of at
// least `wanted` reach; infinity if eight bars do not suffice.
__device__ inline float NucleusDepth(const ClusterTeam& team, SampleShared& shared, const Job& job,
                                     float max, double wanted) {
  // Floats are summed in another order than on the host; rounding must not cost a token.
  const double enough = wanted * (1 + 1e-5);
  float low = 0, depths[kBars] = {1, 2, 4, 6, 8, 12, 16, 24};
  for (int round = 0; round < 2; ++round) {
    float masses[kBars] = {};
    for (int32_t i = threadIdx.x; i < job.count; i += kTeamThreads) {
      const float depth = __fmul_rn(__fsub_rn(max, job.x[i]), job.row.inverse_temperature);
      const float weight = ExpOfNonPositive(-depth);
#pragma unroll
      for (int bar = 0; bar < kBars; ++bar) masses[bar] += depth <= depths[bar] ? weight : 0.0f;
    }
    double sums[kBars];
#pragma unroll
    for (int bar = 0; bar < kBars; ++bar) sums[bar] = static_cast<double>(masses[bar]);
    TeamSums(team, shared, sums, 1 + round);
    float found = INFINITY, below = low;
#pragma unroll
    for (int bar = kBars - 1; bar >= 0; --bar) {
      if (sums[bar] < enough) break;
      found = depths[bar];
      below = bar > 0 ? depths[bar - 1] : low;
    }
    if (round == 1 || found == INFINITY) return found;
    low = below;
#pragma unroll
    for (int bar = 0; bar < kBars; ++bar) {
      depths[bar] =
          bar == kBars - 1 ? found : low + (found - low) * static_cast<float>(bar + 1) / kBars;
    }
  }
  return INFINITY;
}

// Copies the tokens that the threshold selects to rank 0's candidates, in the order of their ids,
// with keys that sort by logit, the lower id first among equals. Returns their number, which may
// exceed the room.
template <class KeyAt>
__device__ int32_t Collect(const ClusterTeam& team, SampleShared& shared, const Job& job,
                           const Threshold& threshold, const KeyAt& key_at) {
  uint64_t* candidates = OfRank(team, job.candidates, 0);
  TakeAbove(team, shared.top_k, job.count, threshold, key_at, [&](int32_t order, int32_t i) {
    if (order >= kMostCandidates) return;
    candidates[order] =
        uint64_t{OrderedKey(job.x[i])} << 32 | (0xffffffffu - static_cast<uint32_t>(job.first + i));
  });
  if (threadIdx.x < 32) {
    const int lane = threadIdx.x;
    const bool has = lane < team.size;
    const int32_t greater =
        __reduce_add_sync(kFullMask, has ? *team.Of(&shared.top_k.greater, lane) : 0);
    const int32_t equal =
        __reduce_add_sync(kFullMask, has ? *team.Of(&shared.top_k.equal, lane) : 0);
    if (lane == 0) shared.collected = greater + min(equal, threshold.ties);
  }
  team.Sync();
  return shared.collected;
}

// Sorts in descending order, by one block.
__device__ inline void SortCandidates(uint64_t* keys, int32_t count) {
  int32_t size = 2;
  while (size < count) size *= 2;
  for (int32_t i = count + static_cast<int32_t>(threadIdx.x); i < size; i += kTeamThreads) {
    keys[i] = 0;
  }
  __syncthreads();
  for (int32_t run = 2; run <= size; run *= 2) {
    for (int32_t distance = run / 2; distance > 0; distance /= 2) {
      for (int32_t pair = threadIdx.x; pair < size / 2; pair += kTeamThreads) {
        const int32_t i = 2 * pair - (pair & (distance - 1));
        const uint64_t a = keys[i], b = keys[i + distance];
        if ((a < b) == ((i & run) == 0)) {
          keys[i] = b;
          keys[i + distance] = a;
        }
      }
      __syncthreads();
    }
  }
}

// Draws among rank 0's candidates: those whose preceding weights are below `wanted` (a share of
// their own total if share > 0) and that reach min-p. Called by one block.
__device__ inline int32_t DrawCandidate(SampleShared& shared, const Job& job, const Best& best,
                                        int32_t count, double wanted, double share) {
  const float max = best.value;
  const int32_t each = (count + kTeamThreads - 1) / kTeamThreads;
  const int32_t begin = static_cast<int32_t>(threadIdx.x) * each;
  double weights[kPerThread];
  double sum = 0;
#pragma unroll
  for (int j = 0; j < kPerThread; ++j) {
    weights[j] = 0;
    if (j < each && begin + j < count) {
      const float logit = LogitOf(static_cast<uint32_t>(job.candidates[begin + j] >> 32));
      weights[j] =
          exp((static_cast<double>(logit) - static_cast<double>(max)) / job.row.temperature);
    }
    sum += weights[j];
  }
  double total;
  double before = BlockExclusiveSum(shared, sum, &total);
  if (share > 0) wanted = share * total;
  FirstArrival first;
#pragma unroll
  for (int j = 0; j < kPerThread; ++j) {
    const double weight = weights[j];
    // The most likely candidate has weight 1.
    if (weight > 0 && before < wanted && weight >= job.row.min_p) {
      const auto token =
          static_cast<int32_t>(0xffffffffu - static_cast<uint32_t>(job.candidates[begin + j]));
      first.Take(ExponentialOf(job.row.draw, token) / weight, token);
    }
    before += weight;
  }
  return BlockFirst(shared, first).token;
}

// Fills `out` if this block knows the token; every block of the team passes the same barriers.
__device__ inline void Filter(const ClusterTeam& team, SampleShared& shared, const Job& job,
                              const Best& best, SampledToken* out) {
  const SampleRow& row = job.row;
  double wanted = INFINITY, share = 0;
  int32_t count = 0;
  if (row.mode == SampleMode::kTopK) {
    const auto key_at = [&](int32_t i) { return OrderedKey(job.x[i]); };
    const Threshold threshold = FindThreshold(team, shared.top_k, job.count, row.top_k, key_at);
    count = Collect(team, shared, job, threshold, key_at);
    if (row.top_p < 1.0) share = row.top_p;
  } else if (row.mode == SampleMode::kNucleus) {
    wanted = row.top_p * SumWeights(team, shared, job, best.value);
    const float depth = NucleusDepth(team, shared, job, best.value, wanted);
    count = Collect(team, shared, job, {0, 0}, [&](int32_t i) -> uint32_t {
      return __fmul_rn(__fsub_rn(best.value, job.x[i]), row.inverse_temperature) <= depth ? 1 : 0;
    });
  } else {
    const double bar = static_cast<double>(best.value) + row.temperature * log(row.min_p);
    const double low = bar - 1e-3 * fabs(bar);
    count = Collect(team, shared, job, {0, 0}, [&](int32_t i) -> uint32_t {
      return static_cast<double>(job.x[i]) >= low ? 1 : 0;
    });
  }
  out->candidates = count;
  if (count > kMostCandidates) {
    out->status = SampledToken::kTooMany;
    out->token = 0;
    return;
  }
  if (team.rank != 0) return;
  if (row.mode != SampleMode::kMinP) {
    SortCandidates(job.candidates, count);
  } else {
    // In the order of ids, except that the best one is swapped with the first.
    const uint64_t key =
        uint64_t{OrderedKey(best.value)} << 32 | (0xffffffffu - static_cast<uint32_t>(best.id));
    for (int32_t i = threadIdx.x; i < count; i += kTeamThreads) {
      if (i > 0 && job.candidates[i] == key) {
        job.candidates[i] = job.candidates[0];
        job.candidates[0] = key;
      }
    }
    __syncthreads();
  }
  out->token = DrawCandidate(shared, job, best, count, wanted, share);
}

}  // namespace litecache::ops::cuda::sampling
