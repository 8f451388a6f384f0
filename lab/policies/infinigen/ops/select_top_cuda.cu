#include "lab/policies/infinigen/ops/select_top_cuda.h"
#include "ops/select/litecache_select.cuh"

namespace litecache::lab::ops::cuda {
namespace {

struct TopProblem {
  StepView step;
  int32_t kv_heads = 0;
  const SelectRange* ranges = nullptr;
  const uint32_t* keys = nullptr;
  int64_t stride = 0;
  int32_t* selected = nullptr;
  int32_t* selected_count = nullptr;
  int64_t max_selected = 0;
};

// One team of blocks per pair.
__global__ void __launch_bounds__(kTeamThreads, 1)
    SelectTopKernel(const __grid_constant__ TopProblem p) {
  __shared__ TopKShared shared;
  const ClusterTeam team;
  const int32_t pair = static_cast<int32_t>(blockIdx.x) / team.size;
  const int32_t sequence = pair / p.kv_heads;
  if (sequence >= *p.step.count) return;
  const bool leads = team.rank == 0 && threadIdx.x == 0;
  const SelectRange range = p.ranges[sequence];
  const int32_t candidates = max(0, range.end - range.begin);
  int32_t* selected = p.selected + pair * p.max_selected;
  if (candidates <= range.k || range.k < 1) {
    const int32_t taken = range.k < 1 ? 0 : candidates;
    for (int32_t i = team.rank * kTeamThreads + threadIdx.x; i < taken;
         i += team.size * kTeamThreads) {
      selected[i] = range.begin + i;
    }
    if (leads) p.selected_count[pair] = taken;
    return;
  }
  const int32_t a_block = (candidates + team.size - 1) / team.size;
  const int32_t first = min(candidates, team.rank * a_block);
  const int32_t last = min(candidates, first + a_block);
  const uint32_t* keys = p.keys + pair * p.stride + first;
  const auto key_at = [&](int32_t i) { return keys[i]; };
  const Threshold threshold = FindThreshold(team, shared, last - first, range.k, key_at);
  TakeAbove(team, shared, last - first, threshold, key_at,
            [&](int32_t order, int32_t i) { selected[order] = range.begin + first + i; });
  if (leads) p.selected_count[pair] = range.k;
  team.Sync();  // no block ends while others read its shared memory
}

}  // namespace

void SelectTop(Stream& stream, const StepView& step, int64_t kv_heads, const SelectRange* ranges,
               const uint32_t* keys, int64_t stride, int64_t max_candidates, int32_t* selected,
               int32_t* selected_count, int64_t max_selected) {
  LC_CHECK(stride >= max_candidates && max_selected >= 1, "stride {}, {} candidates, {} selected",
           stride, max_candidates, max_selected);
  const CudaStream& cuda = AsCuda(stream);
  const auto pairs = static_cast<int>(step.capacity * kv_heads);
  if (pairs == 0) return;
  const TopProblem problem{
      step,        static_cast<int32_t>(kv_heads), ranges, keys, stride, selected, selected_count,
      max_selected};
  WithLargestTeam(cuda, pairs, [&](int team) {
    return LaunchTeams(SelectTopKernel, cuda, pairs, team, 0, SharedLimit(), problem);
  });
}

}  // namespace litecache::lab::ops::cuda
