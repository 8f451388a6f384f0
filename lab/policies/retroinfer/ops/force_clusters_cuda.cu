#include "device/cuda/check.h"
#include "device/cuda/cuda_device.h"
#include "lab/forced/force_reuse.h"
#include "lab/policies/retroinfer/ops/force_clusters_cuda.h"
#include "lab/policies/retroinfer/ops/wave_pair.cuh"

namespace litecache::lab::ops::cuda {
namespace {

// One block per pair. taken: one bit per cluster, for the estimated ones, which are written in
// ascending order.
__global__ void __launch_bounds__(kTeamThreads)
    ForceClustersKernel(const __grid_constant__ StepView step,
                        const __grid_constant__ WaveShape shape,
                        const __grid_constant__ WaveLayer layer,
                        const __grid_constant__ ForcedClusters forced,
                        const __grid_constant__ TableAccess access) {
  extern __shared__ uint32_t taken[];
  __shared__ TellShared shared;
  const auto pair = static_cast<int32_t>(blockIdx.x);
  const int32_t sequence = pair / shape.kv_heads, head = pair % shape.kv_heads;
  if (sequence >= *step.count) return;
  const WaveSequence& wave = layer.sequences[sequence];
  const WaveChoice choice = layer.choices[pair];
  if (wave.clusters == 0) return;
  const StepSequence& s = step.sequences[sequence];
  const RowList index = access.List(s, layer.index.list_of_head[head]);
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const int32_t words = (wave.clusters + 31) / 32;
  for (int32_t w = thread; w < words; w += kTeamThreads) taken[w] = 0;
  __syncthreads();
  const int32_t t = ForcedStep(s.past, s.first_row, forced.steps);
  const uint16_t* order = forced.order + t * forced.stride + int64_t{head} * forced.recorded;
  int32_t* ids = layer.ids + int64_t{pair} * shape.max_chosen;
  for (int32_t base = 0, before = 0; base < forced.recorded && before < choice.count;
       base += kTeamThreads) {
    const int32_t i = base + thread;
    int32_t first = 0, last = 0, filled = 0, of_all;
    if (i < forced.recorded) {
      first = FirstCluster(order[i], wave.clusters, forced.recorded);
      last = FirstCluster(order[i] + 1, wave.clusters, forced.recorded);
    }
    for (int32_t c = first; c < last; ++c) filled += ClusterSize(index, c) > 0;
    int32_t at = before + BlockExclusiveSum(filled, shared.warp_sums, &of_all);
    for (int32_t c = first; c < last && at < choice.count; ++c) {
      if (ClusterSize(index, c) == 0) continue;
      if (at < choice.ranked) {
        ids[at] = c;
      } else {
        atomicOr(taken + c / 32, 1u << c % 32);
      }
      ++at;
    }
    before += of_all;
  }
  __syncthreads();
  for (int32_t base = 0, before = choice.ranked; base < words; base += kTeamThreads) {
    uint32_t bits = base + thread < words ? taken[base + thread] : 0;
    int32_t of_all;
    int32_t at = before + BlockExclusiveSum(__popc(bits), shared.warp_sums, &of_all);
    for (; bits != 0; bits &= bits - 1) {
      ids[at++] = 32 * (base + thread) + __ffs(static_cast<int>(bits)) - 1;
    }
    before += of_all;
  }
  __syncthreads();
  RecordChoice(shape, layer, index, pair, wave.buffer_blocks, choice, shared,
               [&](int32_t i) { return __ldcg(ids + i); });
}

}  // namespace

void ForceClusters(Stream& stream, const StepView& step, const WaveShape& shape,
                   const WaveLayer& layer, const ForcedClusters& forced) {
  LC_CHECK(forced.order != nullptr && forced.recorded >= 1 && forced.steps >= 1);
  const auto pairs = static_cast<unsigned>(step.capacity * shape.kv_heads);
  if (pairs == 0) return;
  const size_t bytes = (static_cast<size_t>(shape.max_clusters) + 31) / 32 * sizeof(uint32_t);
  if (bytes > 40 * 1024) {
    LC_CUDA(cudaFuncSetAttribute(ForceClustersKernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 static_cast<int>(bytes)));
  }
  ForceClustersKernel<<<pairs, kTeamThreads, bytes, AsCuda(stream).handle()>>>(
      step, shape, layer, forced, TableAccess(layer.index));
  LC_CUDA_LAUNCHED();
}

}  // namespace litecache::lab::ops::cuda
