// The kernel of every retriever's selection: a team of blocks for each (sequence, KV head) scores
// the candidates, each block a range of them that it keeps, and selects the k best. One launch per
// layer.
#pragma once

#include <algorithm>

#include "device/cuda/check.h"
#include "device/cuda/cuda_device.h"
#include "ops/attention/listed_cuda.h"
#include "ops/common/soft_cap.cuh"
#include "ops/common/thread_block_clusters_cuda.h"
#include "ops/select/need.h"
#include "ops/select/select_cuda.h"
#include "ops/select/select_scratch_cuda.h"
#include "ops/select/team_top_k.cuh"
#include "ops/slots/litecache_layer_cuda.h"

namespace litecache::ops::cuda {

// Candidates are divided among blocks in multiples of this, the interleaving of metadata.
constexpr int32_t kSelectBlock = 32;

struct SelectSource {
  const float* q = nullptr;  // null: use the labels
  int64_t stride = 0;
  float scale = 0;
  SoftCapOf cap;  // of scaled products, times log2 e
  bool fill = false;
  // Each sequence's range, the same for all heads, in place of LiteCacheShape's; null:
  // LiteCacheShape's.
  const SelectRange* ranges = nullptr;
};

// One pair's selection.
struct SelectTarget {
  const StepSequence* sequence = nullptr;
  int32_t head = 0;
  int32_t list = 0;  // of an offloaded head, otherwise -1
  int32_t begin = 0, end = 0, k = 0;
  int32_t fewest = 0;        // Selection::fewest
  const float* q = nullptr;  // [group][head_dim]
};

// False if the pair has nothing to select. Loads bypass the L1 cache: kernels that overlap others
// may call this before they wait (top_k_chain.cuh).
__device__ inline bool FindTarget(const StepView& step, const LiteCacheShape& shape,
                                  const LiteCacheLayer& layer, const SelectSource& source,
                                  int32_t pair, SelectTarget* target) {
  const int32_t sequence = pair / shape.kv_heads, head = pair % shape.kv_heads;
  const StepSequence& s = step.sequences[sequence];
  if (source.ranges != nullptr) {
    if (sequence >= *step.count) return false;
    const SelectRange range = source.ranges[sequence];
    if (range.end <= range.begin || range.k < 1) return false;
    target->sequence = &s;
    target->head = head;
    target->list = -1;
    target->begin = range.begin;
    target->end = range.end;
    target->k = range.k;
    target->q = source.q == nullptr ? nullptr
                                    : source.q + s.first_row * source.stride +
                                          int64_t{head} * shape.group * shape.head_dim;
    return true;
  }
  // All loads at once: sequences beyond the count also have memory.
  const int32_t count = __ldcg(step.count), past = __ldcg(&s.past);
  const int32_t first_row = __ldcg(&s.first_row), list = __ldcg(layer.slots.list_of_head + head);
  const int32_t refresh = __ldcg(layer.refresh + pair);
  if (sequence >= count) return false;
  const int32_t n = source.fill ? past : past + 1;
  const int32_t candidates = shape.windows.Candidates(n), k = shape.windows.Rows(n);
  if (list >= 0) {
    if (refresh != 1 || candidates == 0) return false;
  } else {
    const bool dense = layer.dense != nullptr && __ldcg(layer.dense + head) != 0;
    if (source.fill || source.q == nullptr || dense || candidates <= k) return false;
  }
  target->sequence = &s;
  target->head = head;
  target->list = list;
  target->begin = shape.windows.SinkRows(n);
  target->end = target->begin + candidates;
  target->k = k;
  target->fewest = shape.windows.FewestRows(k);
  target->q = source.q == nullptr ? LabelOf(s, shape, list)
                                  : source.q + first_row * source.stride +
                                        int64_t{head} * shape.group * shape.head_dim;
  return true;
}

// The input of a scorer: its pair, and this block's candidates [first, last) with keys[t - first].
struct ScoreJob {
  const StepView& step;
  const LiteCacheShape& shape;
  const LiteCacheLayer& layer;
  const SelectTarget& target;
  float scale;
  const SoftCapOf& cap;  // SelectSource's
  int32_t first, last;
  uint32_t* keys;
};

// A block's share of its pair's candidates.
struct Slice {
  int32_t first, last;
};
__device__ inline Slice SliceOf(const ClusterTeam& team, const SelectTarget& target) {
  const int32_t origin = target.begin / kSelectBlock * kSelectBlock;
  const int32_t blocks = (target.end - origin + kSelectBlock - 1) / kSelectBlock;
  const int32_t a_block = (blocks + team.size - 1) / team.size * kSelectBlock;
  const int32_t first = min(target.end, max(target.begin, origin + team.rank * a_block));
  return {first, min(target.end, max(first, origin + (team.rank + 1) * a_block))};
}

// The most tokens that a block of a team of `size` may have to keep.
__host__ __device__ inline int32_t TokensABlock(int32_t candidates, int32_t size) {
  const int32_t blocks = candidates / kSelectBlock + 2;  // cut at both ends
  return (blocks + size - 1) / size * kSelectBlock;
}

// Scorer: `void Score(const ClusterTeam&, const ScoreJob&, std::byte* shared)`, called by all
// threads of all blocks of a team; shared: shared_bytes bytes, 16-byte aligned.
template <class Scorer>
__global__ void __launch_bounds__(kTeamThreads, 1)
    SelectKernel(const __grid_constant__ StepView step,
                 const __grid_constant__ LiteCacheShape shape,
                 const __grid_constant__ LiteCacheLayer layer,
                 const __grid_constant__ SelectSource source, const __grid_constant__ Scorer scorer,
                 int32_t scorer_bytes, uint32_t* scratch, int64_t scratch_words) {
  extern __shared__ uint4 dynamic[];
  __shared__ TopKShared shared;
  const ClusterTeam team;
  const int32_t pair = static_cast<int32_t>(blockIdx.x) / team.size;
  const bool leads = team.rank == 0 && threadIdx.x == 0;
  SelectTarget target;
  if (!FindTarget(step, shape, layer, source, pair, &target)) {  // the same for the whole team
    if (leads) layer.selected_count[pair] = 0;
    return;
  }
  int32_t* selected = layer.selected + int64_t{pair} * shape.max_rows;
  const int32_t candidates = target.end - target.begin;
  if (candidates <= target.k) {
    for (int32_t i = team.rank * kTeamThreads + threadIdx.x; i < candidates;
         i += team.size * kTeamThreads) {
      selected[i] = target.begin + i;
    }
    if (leads) layer.selected_count[pair] = candidates;
    return;
  }
  const Slice slice = SliceOf(team, target);
  const int32_t first = slice.first, last = slice.last;
  auto* memory = reinterpret_cast<std::byte*>(dynamic);
  uint32_t* keys = scratch == nullptr ? reinterpret_cast<uint32_t*>(memory + scorer_bytes)
                                      : scratch + pair * scratch_words + (first - target.begin);
  scorer.Score(team,
               ScoreJob{step, shape, layer, target, source.scale, source.cap, first, last, keys},
               memory);
  __syncthreads();
  const auto key_at = [&](int32_t i) { return keys[i]; };
  int32_t k = target.k;
  if (target.fewest > 0) {
    const uint32_t least = OrderedKey(NeededScore(shape.group, candidates));
    k = max(target.fewest, min(k, CountReaching(team, shared, last - first, least, key_at)));
  }
  const Threshold threshold = FindThreshold(team, shared, last - first, k, key_at);
  TakeAbove(team, shared, last - first, threshold, key_at,
            [&](int32_t order, int32_t i) { selected[order] = first + i; });
  if (leads) {
    layer.selected_count[pair] = k;
    if (target.list < 0 &&
        layer.counters != nullptr) {  // offloaded heads are counted when they take their slots
      atomicAdd(&layer.counters[target.head].rows_selected, static_cast<unsigned long long>(k));
    }
  }
  team.Sync();  // no block ends while others read its shared memory
}

inline int DeviceAttribute(cudaDeviceAttr attribute) {
  int device = 0, value = 0;
  LC_CUDA(cudaGetDevice(&device));
  LC_CUDA(cudaDeviceGetAttribute(&value, attribute, device));
  return value;
}

// Launches `kernel` with teams of `team` blocks, if all of them fit on the GPU at once, or with one
// block each if they outnumber its SMs; otherwise returns false.
template <typename... Parameters, typename... Arguments>
bool LaunchTeams(void (*kernel)(Parameters...), const CudaStream& stream, int pairs, int team,
                 size_t shared_bytes, size_t shared_limit, Arguments... arguments) {
  // Always set to the limit: a lower value would also apply to graphs captured before.
  LC_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(shared_limit)));
  cudaLaunchAttribute attributes[2] = {};
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(pairs * team));
  config.blockDim = dim3(kTeamThreads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream.handle();
  config.attrs = attributes;
  if (team > 1) {
    cudaLaunchAttribute& attribute = attributes[config.numAttrs++];
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = static_cast<unsigned>(team);
    attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
    if (team > 8) {
      LC_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
    }
    int clusters = 0;
    const cudaError_t error = cudaOccupancyMaxActiveClusters(&clusters, kernel, &config);
    // Partitions of SMs are no multiples of a team: fewer teams may fit than the SMs would hold.
    const bool at_once = pairs * team <= stream.sm_count();
    if (error != cudaSuccess || clusters < (at_once ? pairs : 1)) {
      cudaGetLastError();  // clears the error of a refusal
      return false;
    }
  }
  LC_CUDA(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...));
  return true;
}

// Calls launch(team) with smaller and smaller teams until one fits: as many blocks per team as the
// GPU can run with all pairs at once, so that few pairs fill the GPU and many do not run one after
// another, each waiting for its teams' barriers; teams of up to `least` blocks run one after
// another nevertheless. How many blocks beyond 8 a cluster can have depends on the GPU's
// partitions, which differ in size.
template <class Launch>
void WithLargestTeam(const CudaStream& stream, int pairs, const Launch& launch, int least = 1) {
  const bool clusters = UseClusters();
  const int room = stream.sm_count() / std::max(1, pairs);
  for (int team : {kMaxTeam, 14, 12, 10, 8, 4, 2, 1}) {
    if (team > 1 && (!clusters || (room < team && team > least))) continue;
    if (launch(team)) return;
  }
  LC_CHECK(false, "a block of {} threads does not fit this GPU", kTeamThreads);
}

inline SelectSource SourceOf(const LiteCacheShape& shape, const SelectQuery& query) {
  SelectSource source{
      .scale = query.scale, .cap = SoftCapOf(query.cap * kLog2E), .fill = query.fill};
  if (query.q != nullptr) {
    LC_CHECK(query.q->dtype == DType::kF32 &&
             query.q->cols == int64_t{shape.kv_heads} * shape.group * shape.head_dim);
    source.q = query.q->Row<const float>(0);
    source.stride = query.q->stride;
  }
  return source;
}

// The dynamic shared memory that a block of these kernels may use.
inline size_t SharedLimit() {
  return static_cast<size_t>(DeviceAttribute(cudaDevAttrMaxSharedMemoryPerBlockOptin)) -
         sizeof(TopKShared) - 1024;
}

template <class Scorer>
void LaunchSelect(Stream& stream, const StepView& step, const LiteCacheShape& shape,
                  const LiteCacheLayer& layer, const SelectQuery& query, const Scorer& scorer,
                  size_t scorer_bytes, void* scratch, const SelectRange* ranges = nullptr) {
  SelectSource source = SourceOf(shape, query);
  source.ranges = ranges;
  LC_CHECK(ranges == nullptr || source.q != nullptr);
  const CudaStream& cuda = AsCuda(stream);
  const int pairs = step.capacity * shape.kv_heads;
  const auto aligned = static_cast<int32_t>((scorer_bytes + 15) / 16 * 16);
  const size_t limit = SharedLimit();
  WithLargestTeam(cuda, pairs, [&](int team) {
    const size_t keys = 4 * static_cast<size_t>(TokensABlock(step.max_context, team));
    const bool in_shared = aligned + keys <= limit;
    return LaunchTeams(SelectKernel<Scorer>, cuda, pairs, team,
                       static_cast<size_t>(aligned) + (in_shared ? keys : 0), limit, step, shape,
                       layer, source, scorer, aligned,
                       in_shared ? nullptr : static_cast<uint32_t*>(scratch),
                       KeyWords(step.max_context));
  });
}

}  // namespace litecache::ops::cuda
