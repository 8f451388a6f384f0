#include "device/cuda/check.h"
#include "device/cuda/cuda_device.h"
#include "ops/cuda/block_sum.cuh"
#include "ops/cuda/cluster_bitmap.cuh"
#include "ops/cuda/impose_reuse.h"
#include "ops/cuda/overlap.cuh"
#include "ops/cuda/take_words.cuh"

namespace litecache::ops::cuda {
namespace {

__device__ ImposedHead Imposed(const ImposedLayer& imposed, const StepSequence& s, int32_t head) {
  const int32_t step = ImposedStep(s.past, s.first_row, imposed.steps);
  return imposed.heads[int64_t{step} * imposed.stride + head];
}

// A thread a pair.
__global__ void ImposeHitsKernel(const __grid_constant__ StepView step,
                                 const __grid_constant__ LiteShape shape,
                                 const __grid_constant__ LiteLayer layer,
                                 const __grid_constant__ ImposedLayer imposed) {
  const int32_t pair = blockIdx.x * blockDim.x + threadIdx.x;
  const int32_t sequence = pair / shape.kv_heads, head = pair % shape.kv_heads;
  if (sequence >= *step.count) return;
  const StepSequence& s = step.sequences[sequence];
  const int32_t list = layer.slots.list_of_head[head];
  if (list < 0 || AllFit(shape, s.past + 1)) return;
  const int32_t hit = Imposed(imposed, s, head).hit;
  const bool was_hit = layer.refresh[pair] == 0;
  if (hit < 0 || (hit == 1) == was_hit) return;
  layer.refresh[pair] = was_hit ? 1 : 0;
  s.heads[list].pending = was_hit ? 1 : 0;
  atomicAdd(&layer.counters[head].hits, was_hit ? ~0ull : 1ull);
}

// A cluster a pair, where the GPU has clusters.
LC_CLUSTER __global__ void __launch_bounds__(kClusterThreads)
    ClusterOverlapKernel(const __grid_constant__ StepView step,
                         const __grid_constant__ LiteShape shape,
                         const __grid_constant__ LiteLayer layer,
                         const __grid_constant__ ImposedLayer imposed, int shift) {
  extern __shared__ uint32_t dynamic[];
  __shared__ int32_t warp_sums[kClusterWarps];
  __shared__ int32_t cached_of_block;
  WaitForKernelBefore();
  const ClusterTeam team;
  const int32_t pair = static_cast<int32_t>(blockIdx.x) / kClusterBlocks;
  const int32_t head = pair % shape.kv_heads, sequence = pair / shape.kv_heads;
  // Beside products a load takes microseconds: those that need nothing of each other go together.
  const StepSequence& s = step.sequences[sequence];
  const int32_t sequences = *step.count, list = layer.slots.list_of_head[head];
  const int32_t refresh = layer.refresh[pair], count = layer.selected_count[pair];
  const HeadState* const heads = s.heads;
  const int32_t n = s.past + 1;
  if (sequence >= sequences || list < 0 || refresh != 1) return;
  const int32_t used = heads[list].used;
  const int32_t kept = Imposed(imposed, s, head).kept;
  if (kept < 0) return;
  const int32_t thread = threadIdx.x;
  const int32_t begin = SinkRows(shape, n), end = RecentBegin(shape, n);
  const ClusterBitmap has{dynamic, shift};
  has.Clear();
  team.Sync();
  constexpr int kInFlight = 4;
  constexpr int32_t kThreads = kClusterBlocks * kClusterThreads;
  for (int32_t i = team.rank * kClusterThreads + thread; i < used; i += kInFlight * kThreads) {
    int32_t positions[kInFlight];
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) {
      const int32_t slot = i + u * kThreads;
      positions[u] =
          slot < used ? *SlotOf(s, layer.slots, list, shape.cache_begin + slot).position : -1;
    }
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) {
      if (positions[u] >= begin && positions[u] < end) has.Set(team, positions[u]);
    }
  }
  team.Sync();
  const int32_t a_thread = has.OwnWords() / kClusterThreads;
  int32_t bits = 0, of_block;
  for (int32_t w = 0; w < a_thread; ++w) bits += __popc(dynamic[thread * a_thread + w]);
  const int32_t before = ClusterBlockSum(bits, warp_sums, &of_block);
  if (thread == 0) cached_of_block = of_block;
  team.Sync();
  const ClusterSums cached = SumOverCluster(team, &cached_of_block);
  const int32_t first_word = team.rank * has.OwnWords();
  const int32_t first = first_word + thread * a_thread;
  TakeWords(first, first + a_thread, begin, end, count, kept, cached.all, cached.before + before,
            layer.selected + int64_t{pair} * shape.max_rows,
            [&](int32_t w) { return dynamic[w - first_word]; });
  team.Sync();  // others have read this block's shared memory
}

// A block a pair. A bitmap of the positions that have a slot; each thread has consecutive words of
// it, so that the new selection comes out ascending.
__global__ void __launch_bounds__(kTeamThreads, 1)
    ImposeOverlapKernel(const __grid_constant__ StepView step,
                        const __grid_constant__ LiteShape shape,
                        const __grid_constant__ LiteLayer layer,
                        const __grid_constant__ ImposedLayer imposed, uint32_t* scratch,
                        int32_t max_words) {
  extern __shared__ uint32_t dynamic[];
  __shared__ int32_t warp_sums[kTeamWarps];
  const int32_t head = blockIdx.x, sequence = blockIdx.y;
  const int32_t thread = threadIdx.x;
  if (sequence >= *step.count) return;
  const int32_t pair = sequence * shape.kv_heads + head;
  const int32_t list = layer.slots.list_of_head[head];
  if (list < 0 || layer.refresh[pair] != 1) return;
  const StepSequence& s = step.sequences[sequence];
  const int32_t kept = Imposed(imposed, s, head).kept;
  if (kept < 0) return;
  const int32_t n = s.past + 1;
  const int32_t begin = SinkRows(shape, n), end = RecentBegin(shape, n);
  const int32_t count = layer.selected_count[pair], used = s.heads[list].used;
  uint32_t* has = scratch != nullptr ? scratch + int64_t{pair} * max_words : dynamic;
  const int32_t words = min((end + 31) / 32, max_words);
  for (int32_t w = thread; w < words; w += kTeamThreads) has[w] = 0;
  __syncthreads();
  // Several loads of a thread at once: each is two, one after the other.
  constexpr int kInFlight = 8;
  for (int32_t i = thread; i < used; i += kInFlight * kTeamThreads) {
    int32_t positions[kInFlight];
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) {
      const int32_t slot = i + u * kTeamThreads;
      positions[u] =
          slot < used ? *SlotOf(s, layer.slots, list, shape.cache_begin + slot).position : -1;
    }
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) {
      const int32_t position = positions[u];
      if (position >= begin && position < end) atomicOr(has + position / 32, 1u << position % 32);
    }
  }
  __syncthreads();
  const int32_t a_thread = (words + kTeamThreads - 1) / kTeamThreads;
  const int32_t first = min(words, thread * a_thread), last = min(words, first + a_thread);
  int32_t bits = 0, cached;
  for (int32_t w = first; w < last; ++w) bits += __popc(has[w]);
  const int32_t cached_before = BlockExclusiveSum(bits, warp_sums, &cached);
  TakeWords(first, last, begin, end, count, kept, cached, cached_before,
            layer.selected + int64_t{pair} * shape.max_rows, [&](int32_t w) { return has[w]; });
}

}  // namespace

void ImposeHits(Stream& stream, const StepView& step, const LiteShape& shape,
                const LiteLayer& layer, const ImposedLayer& imposed) {
  LC_CHECK(imposed.heads != nullptr && imposed.steps >= 1);
  constexpr int kThreads = 128;
  const int pairs = step.capacity * shape.kv_heads;
  ImposeHitsKernel<<<(pairs + kThreads - 1) / kThreads, kThreads, 0, AsCuda(stream).handle()>>>(
      step, shape, layer, imposed);
  LC_CUDA_LAUNCHED();
}

void ImposeOverlap(Stream& stream, const StepView& step, const LiteShape& shape,
                   const LiteLayer& layer, const ImposedLayer& imposed, void* scratch) {
  LC_CHECK(imposed.heads != nullptr && imposed.steps >= 1);
  const int shift = ClusterBitmapShift(step.max_context);
  if (KernelsKnowHopper() && ClusterBitmapBytes(shift) <= kMaxClusterBytes) {
    const auto pairs = static_cast<unsigned>(step.capacity * shape.kv_heads);
    LaunchOverlapping(AsCuda(stream), ClusterOverlapKernel, pairs * kClusterBlocks, kClusterThreads,
                      ClusterBitmapBytes(shift), step, shape, layer, imposed, shift);
    return;
  }
  const bool in_shared = step.max_context <= kSharedPositions;
  LC_CHECK(in_shared || scratch != nullptr, "a context of {} needs scratch", step.max_context);
  const int32_t words = BitmapWords(step.max_context);
  LC_CUDA(cudaFuncSetAttribute(ImposeOverlapKernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               kSharedPositions / 8));
  const dim3 grid(static_cast<unsigned>(shape.kv_heads), static_cast<unsigned>(step.capacity));
  ImposeOverlapKernel<<<grid, kTeamThreads, in_shared ? 4 * static_cast<size_t>(words) : 0,
                        AsCuda(stream).handle()>>>(
      step, shape, layer, imposed, in_shared ? nullptr : static_cast<uint32_t*>(scratch), words);
  LC_CUDA_LAUNCHED();
}

}  // namespace litecache::ops::cuda
