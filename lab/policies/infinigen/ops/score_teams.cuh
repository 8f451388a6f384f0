// Scores of all candidates, kept in global memory: for selections that depend on the scores of
// several pairs (SelectTop).
#pragma once

#include "lab/namespaces.h"
#include "ops/select/litecache_select.cuh"

namespace litecache::lab::ops::cuda {

// Scorer as in SelectKernel; keys [pairs][stride] of the candidates from the range's begin on.
template <class Scorer>
__global__ void __launch_bounds__(kTeamThreads, 1)
    ScoreKernel(const __grid_constant__ StepView step, const __grid_constant__ LiteCacheShape shape,
                const __grid_constant__ LiteCacheLayer layer,
                const __grid_constant__ SelectSource source, const __grid_constant__ Scorer scorer,
                uint32_t* keys, int64_t stride) {
  extern __shared__ uint4 dynamic[];
  const ClusterTeam team;
  const int32_t pair = static_cast<int32_t>(blockIdx.x) / team.size;
  SelectTarget target;
  if (!FindTarget(step, shape, layer, source, pair, &target)) return;  // the whole team returns
  const auto [first, last] = SliceOf(team, target);
  scorer.Score(team,
               ScoreJob{step, shape, layer, target, source.scale, source.cap, first, last,
                        keys + pair * stride + (first - target.begin)},
               reinterpret_cast<std::byte*>(dynamic));
  team.Sync();  // no block ends while others read its shared memory
}

// q: null if the scorer has its queries from elsewhere.
template <class Scorer>
void LaunchScore(Stream& stream, const StepView& step, const LiteCacheShape& shape,
                 const LiteCacheLayer& layer, const SelectRange* ranges, const Scorer& scorer,
                 size_t scorer_bytes, uint32_t* keys, int64_t stride) {
  const CudaStream& cuda = AsCuda(stream);
  const int pairs = step.capacity * shape.kv_heads;
  if (pairs == 0) return;
  SelectSource source;
  source.ranges = ranges;
  WithLargestTeam(cuda, pairs, [&](int team) {
    return LaunchTeams(ScoreKernel<Scorer>, cuda, pairs, team, scorer_bytes, SharedLimit(), step,
                       shape, layer, source, scorer, keys, stride);
  });
}

}  // namespace litecache::lab::ops::cuda
