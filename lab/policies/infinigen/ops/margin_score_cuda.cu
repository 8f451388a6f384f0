#include "lab/policies/infinigen/ops/infinigen_cuda.h"
#include "lab/policies/infinigen/ops/score_teams.cuh"
#include "ops/select/component_products.cuh"

namespace litecache::lab::ops::cuda {
namespace {

constexpr int kMaxGroup = 64;

struct alignas(16) MarginShared {
  float warp_best[kTeamWarps][kMaxGroup];
  float block_best[kMaxGroup], best[kMaxGroup];
  int32_t above;
};

// Margins of a pair's candidates, for kHeads query heads at a time. Products are computed twice:
// that takes less memory than keeping a group's scores.
template <int kHeads>
struct MarginScorer {
  int32_t pairs = 0;
  float margin = 0;  // alpha
  float scale = 0;
  const float* components = nullptr;  // [pairs of the step][group][2 pairs]
  int32_t* above = nullptr;           // [pairs of the step], zeros

  static size_t Padded(int64_t group) {
    return static_cast<size_t>((group + kHeads - 1) / kHeads * kHeads);
  }
  size_t SharedBytes(int64_t group) const {
    return sizeof(MarginShared) + Padded(group) * static_cast<size_t>(2 * pairs) * sizeof(float);
  }

  __device__ void Score(const ClusterTeam& team, const ScoreJob& job, std::byte* memory) const {
    auto* shared = reinterpret_cast<MarginShared*>(memory);
    auto* queries = reinterpret_cast<float*>(memory + sizeof(MarginShared));
    const int32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = job.shape.group;
    const int32_t pair = static_cast<int32_t>(blockIdx.x) / team.size;
    const int32_t size = group * 2 * pairs;
    const int32_t padded = (group + kHeads - 1) / kHeads * kHeads * 2 * pairs;
    for (int32_t i = threadIdx.x; i < padded; i += kTeamThreads) {
      queries[i] = i < size ? components[int64_t{pair} * size + i] : 0;
    }
    if (threadIdx.x == 0) shared->above = 0;
    __syncthreads();
    const int32_t origin = job.first / kSelectBlock * kSelectBlock + warp * kSelectBlock;
    for (int32_t j0 = 0; j0 < group; j0 += kHeads) {
      float best[kHeads];
#pragma unroll
      for (int j = 0; j < kHeads; ++j) best[j] = -INFINITY;
      for (int32_t t = origin; t < job.last; t += kTeamThreads) {
        float s[kHeads];
        ComponentProducts<kHeads>(job, queries, pairs, t, j0, s);
        if (t + lane < job.first || t + lane >= job.last) continue;
#pragma unroll
        for (int j = 0; j < kHeads; ++j) best[j] = fmaxf(best[j], s[j]);
      }
      __syncwarp();
#pragma unroll
      for (int j = 0; j < kHeads; ++j) {
        const float highest = WarpMax(best[j]);
        if (lane == 0 && j0 + j < group) shared->warp_best[warp][j0 + j] = highest;
      }
    }
    __syncthreads();
    for (int32_t j = warp; j < group; j += kTeamWarps) {
      const float highest = WarpMax(shared->warp_best[lane][j]);
      if (lane == 0) shared->block_best[j] = highest;
    }
    team.Sync();
    for (int32_t j = warp; j < group; j += kTeamWarps) {
      const float highest =
          WarpMax(lane < team.size ? *team.Of(&shared->block_best[j], lane) : -INFINITY);
      if (lane == 0) shared->best[j] = highest;
    }
    __syncthreads();
    int32_t count = 0;
    for (int32_t t = origin; t < job.last; t += kTeamThreads) {
      float value = -INFINITY;
      for (int32_t j0 = 0; j0 < group; j0 += kHeads) {
        float s[kHeads];
        ComponentProducts<kHeads>(job, queries, pairs, t, j0, s);
#pragma unroll
        for (int j = 0; j < kHeads; ++j) {
          if (j0 + j < group) value = fmaxf(value, scale * (s[j] - shared->best[j0 + j]));
        }
      }
      if (t + lane >= job.first && t + lane < job.last) {
        job.keys[t + lane - job.first] = OrderedKey(value);
        count += value > -margin;
      }
    }
    __syncwarp();
    count = __reduce_add_sync(kFullMask, count);
    if (lane == 0) atomicAdd(&shared->above, count);
    __syncthreads();
    if (threadIdx.x == 0) atomicAdd(above + pair, shared->above);
  }
};

// One block; each thread processes one sequence at a time.
__global__ void MarginCountKernel(const __grid_constant__ StepView step, int32_t kv_heads,
                                  double cap, const __grid_constant__ Speculation work,
                                  DeviceHeadCounters* counters) {
  const int32_t count = *step.count;
  for (int32_t sequence = threadIdx.x; sequence < count; sequence += blockDim.x) {
    const int32_t past = step.sequences[sequence].past;
    int32_t k = 0;
    if (past > 0) {
      int64_t above = 0;
      for (int32_t h = 0; h < kv_heads; ++h) above += work.above[sequence * kv_heads + h];
      // The same as CapRows in lab/policies/infinigen/shape.cc, bit for bit.
      constexpr double kShareRounding = 1e-9;
      const auto part = static_cast<int64_t>(__dadd_rn(__dmul_rn(cap, past), kShareRounding));
      const int64_t most = max(int64_t{1}, min(part, int64_t{past}));
      k = static_cast<int32_t>(max(int64_t{1}, min(above / kv_heads, most)));
    }
    work.ranges[sequence].k = k;
    for (int32_t h = 0; h < kv_heads; ++h) {
      work.attended[sequence * kv_heads + h] = k + 1;
      if (k == 0) continue;
      atomicAdd(&counters[h].lookups, 1ull);
      atomicAdd(&counters[h].rows_selected, static_cast<unsigned long long>(k));
      atomicAdd(&counters[h].rows_moved, static_cast<unsigned long long>(k));
    }
  }
}

}  // namespace

void MarginScore(Stream& stream, const StepView& step, const PartialLayer& layer, float scale,
                 float alpha, double cap, const Speculation& work, uint32_t* keys, int64_t stride,
                 DeviceHeadCounters* counters) {
  LC_CHECK(layer.group >= 1 && layer.group <= kMaxGroup, "a group of {}", layer.group);
  LC_CHECK(scale > 0 && stride >= step.max_context, "scale {}, stride {}", scale, stride);
  if (step.capacity == 0) return;
  LiteCacheShape shape;
  shape.kv_heads = layer.kv_heads;
  shape.group = layer.group;
  shape.head_dim = layer.head_dim;
  LiteCacheLayer tables;
  tables.metadata = layer.keys;
  const auto launch = [&](auto heads) {
    const MarginScorer<decltype(heads)::value> scorer{static_cast<int32_t>(layer.format.pairs()),
                                                      alpha, scale, work.components, work.above};
    LaunchScore(stream, step, shape, tables, work.ranges, scorer, scorer.SharedBytes(layer.group),
                keys, stride);
  };
  if (layer.group == 1) {
    launch(std::integral_constant<int, 1>());
  } else if (layer.group <= 4) {
    launch(std::integral_constant<int, 4>());
  } else {
    launch(std::integral_constant<int, 8>());
  }
  MarginCountKernel<<<1, 128, 0, AsCuda(stream).handle()>>>(step, layer.kv_heads, cap, work,
                                                            counters);
  LC_CUDA_LAUNCHED();
}

}  // namespace litecache::lab::ops::cuda
