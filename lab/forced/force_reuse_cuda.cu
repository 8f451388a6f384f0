#include "device/cuda/check.h"
#include "device/cuda/cuda_device.h"
#include "lab/forced/force_reuse_cuda.h"
#include "lab/forced/take_words.cuh"
#include "ops/common/overlap.cuh"
#include "ops/reuse/slot_bits.cuh"

namespace litecache::ops::cuda {
namespace {

__device__ ForcedHead Forced(const ForcedLayer& forced, const StepSequence& s, int32_t head) {
  const int32_t step = ForcedStep(s.past, s.first_row, forced.steps);
  return forced.heads[int64_t{step} * forced.stride + head];
}

// One thread per pair.
__global__ void ForceHitsKernel(const __grid_constant__ StepView step,
                                const __grid_constant__ LiteCacheShape shape,
                                const __grid_constant__ LiteCacheLayer layer,
                                const __grid_constant__ ForcedLayer forced,
                                StepCondition condition) {
  WaitForKernelBefore();
  LetNextKernelStart();
  const int32_t pair = blockIdx.x * blockDim.x + threadIdx.x;
  const int32_t sequence = pair / shape.kv_heads, head = pair % shape.kv_heads;
  if (sequence >= *step.count) return;
  const StepSequence& s = step.sequences[sequence];
  const int32_t list = layer.slots.list_of_head[head];
  if (list < 0 || shape.windows.AllFit(s.past + 1)) return;
  const int32_t hit = Forced(forced, s, head).hit;
  const bool was_hit = layer.refresh[pair] == 0;
  if (hit < 0 ? !was_hit : hit == 0) condition.Ask();
  if (hit < 0 || (hit == 1) == was_hit) return;
  layer.refresh[pair] = was_hit ? 1 : 0;
  s.heads[list].pending = was_hit ? 1 : 0;
  atomicAdd(&layer.counters[head].hits, was_hit ? ~0ull : 1ull);
}

// A pair whose selection is to be replaced.
struct OverlapPair {
  int32_t pair, list, kept, begin, end;  // candidates
  const StepSequence* s;

  __device__ bool Find(const StepView& step, const LiteCacheShape& shape,
                       const LiteCacheLayer& layer, const ForcedLayer& forced) {
    // A load takes microseconds while products run: independent loads are issued together.
    pair = static_cast<int32_t>(blockIdx.y);
    const int32_t head = pair % shape.kv_heads, sequence = pair / shape.kv_heads;
    s = &step.sequences[sequence];
    list = layer.slots.list_of_head[head];
    const int32_t sequences = *step.count, refresh = layer.refresh[pair];
    const int32_t n = s->past + 1;
    begin = shape.windows.SinkRows(n);
    end = shape.windows.RecentBegin(n);
    if (sequence >= sequences || list < 0 || refresh != 1) return false;
    kept = Forced(forced, *s, head).kept;
    return kept >= 0;
  }
};

// Clears the bitmaps: one block per kBlockParts parts.
__global__ void __launch_bounds__(kSlotThreads)
    ClearKernel(const __grid_constant__ StepView step, const __grid_constant__ LiteCacheShape shape,
                const __grid_constant__ LiteCacheLayer layer,
                const __grid_constant__ ForcedLayer forced, const __grid_constant__ SlotBits bits) {
  WaitForKernelBefore();
  LetNextKernelStart();
  OverlapPair at;
  if (!at.Find(step, shape, layer, forced)) return;
  const auto thread = static_cast<int32_t>(threadIdx.x), block = static_cast<int32_t>(blockIdx.x);
  auto* words =
      reinterpret_cast<uint4*>(bits.Of(at.pair, bits.positions()) + int64_t{block} * kBlockWords);
  for (int32_t i = thread; i < kBlockWords / 4; i += kSlotThreads) words[i] = {0, 0, 0, 0};
  if (thread < kBlockParts) bits.Of(at.pair, bits.counts())[block * kBlockParts + thread] = 0;
}

// Marks the positions that have a slot: one block per part of the slots.
__global__ void __launch_bounds__(kSlotThreads, 4)
    CachedKernel(const __grid_constant__ StepView step,
                 const __grid_constant__ LiteCacheShape shape,
                 const __grid_constant__ LiteCacheLayer layer,
                 const __grid_constant__ ForcedLayer forced,
                 const __grid_constant__ SlotBits bits) {
  extern __shared__ uint32_t of_part[];  // [bits.parts]
  const auto thread = static_cast<int32_t>(threadIdx.x);
  for (int32_t p = thread; p < bits.parts; p += kSlotThreads) of_part[p] = 0;
  WaitForKernelBefore();
  LetNextKernelStart();
  OverlapPair at;
  if (!at.Find(step, shape, layer, forced)) return;
  const int32_t used = at.s->heads[at.list].used;
  const int32_t first = static_cast<int32_t>(blockIdx.x) * kPartBits;
  if (first >= used) return;
  __syncthreads();
  constexpr int kInFlight = kPartBits / kSlotThreads;
  int32_t position[kInFlight];
#pragma unroll
  for (int u = 0; u < kInFlight; ++u) {
    const int32_t i = first + u * kSlotThreads + thread;
    position[u] = i < used ? *SlotOf(*at.s, layer, at.list, shape.cache_begin + i).position : -1;
  }
  uint32_t* cached = bits.Of(at.pair, bits.positions());
  bool is_new[kInFlight];
#pragma unroll
  for (int u = 0; u < kInFlight; ++u) {
    is_new[u] = false;
    if (position[u] >= at.begin && position[u] < at.end) {
      const uint32_t bit = 1u << position[u] % 32;
      is_new[u] = (atomicOr(cached + position[u] / 32, bit) & bit) == 0;
    }
  }
#pragma unroll
  for (int u = 0; u < kInFlight; ++u) {
    if (is_new[u]) atomicAdd(of_part + position[u] / kPartBits, 1u);
  }
  __syncthreads();
  uint32_t* counts = bits.Of(at.pair, bits.counts());
  for (int32_t p = thread; p < bits.parts; p += kSlotThreads) {
    if (of_part[p] != 0) atomicAdd(counts + p, of_part[p]);
  }
}

// Writes the new selection: one warp per part of the positions, one word per lane at a time.
__global__ void __launch_bounds__(kSlotThreads, 4)
    ChooseKernel(const __grid_constant__ StepView step,
                 const __grid_constant__ LiteCacheShape shape,
                 const __grid_constant__ LiteCacheLayer layer,
                 const __grid_constant__ ForcedLayer forced,
                 const __grid_constant__ SlotBits bits) {
  extern __shared__ int32_t befores[];  // [bits.parts + 1]
  __shared__ int32_t warp_sums[kSlotWarps];
  WaitForKernelBefore();
  LetNextKernelStart();
  OverlapPair at;
  const bool chooses = at.Find(step, shape, layer, forced);
  const int32_t count = layer.selected_count[blockIdx.y];
  if (!chooses) return;
  const int32_t lane = static_cast<int32_t>(threadIdx.x) % 32;
  const int32_t part =
      static_cast<int32_t>(blockIdx.x) * kBlockParts + static_cast<int32_t>(threadIdx.x) / 32;
  const uint32_t* words = bits.Of(at.pair, bits.positions()) + int64_t{part} * kPartWords + lane;
  const uint32_t two[2] = {__ldcg(words), __ldcg(words + 32)};
  const int32_t cached = SumParts(bits.Of(at.pair, bits.counts()), bits.parts, warp_sums, befores);
  int32_t before = befores[part];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int32_t w = part * kPartWords + 32 * i + lane;
    int32_t of_warp;
    const int32_t cached_before = before + WarpExclusiveSum(__popc(two[i]), &of_warp);
    before += of_warp;
    TakeWords(w, w + 1, at.begin, at.end, count, at.kept, cached, cached_before,
              layer.selected + int64_t{at.pair} * shape.max_rows, [&](int32_t) { return two[i]; });
  }
}

struct OverlapLaunch {
  SlotBits bits;
  dim3 positions, slots;  // blocks
  size_t counts;          // shared memory for the parts' counts

  OverlapLaunch(const StepView& step, const LiteCacheShape& shape, const ForcedLayer& forced,
                void* scratch)
      : bits(SlotBitsOf(step.max_context, MostSlots(shape), scratch)),
        counts(4 * (static_cast<size_t>(bits.parts) + 1)) {
    LC_CHECK(forced.heads != nullptr && forced.steps >= 1);
    LC_CHECK(scratch != nullptr);
    const auto pairs = static_cast<unsigned>(step.capacity * shape.kv_heads);
    positions = dim3(static_cast<unsigned>(bits.parts / kBlockParts), pairs);
    slots = dim3(static_cast<unsigned>(bits.slot_parts), pairs);
  }
};

}  // namespace

void ForceHits(Stream& stream, const StepView& step, const LiteCacheShape& shape,
               const LiteCacheLayer& layer, const ForcedLayer& forced,
               const StepCondition& condition) {
  LC_CHECK(forced.heads != nullptr && forced.steps >= 1);
  constexpr int kThreads = 128;
  const int pairs = step.capacity * shape.kv_heads;
  LaunchOverlapping(AsCuda(stream), ForceHitsKernel,
                    static_cast<unsigned>((pairs + kThreads - 1) / kThreads), kThreads, 0, step,
                    shape, layer, forced, condition);
}

size_t ForceScratchBytes(const LiteCacheShape& shape, int64_t capacity, int64_t max_context) {
  const SlotBits bits = SlotBitsOf(max_context, MostSlots(shape), nullptr);
  return static_cast<size_t>(4 * capacity * shape.kv_heads * bits.pair_words());
}

void MarkCached(Stream& stream, const StepView& step, const LiteCacheShape& shape,
                const LiteCacheLayer& layer, const ForcedLayer& forced, void* scratch) {
  const OverlapLaunch launch(step, shape, forced, scratch);
  CudaStream& cuda = AsCuda(stream);
  LaunchOverlapping(cuda, ClearKernel, launch.positions, kSlotThreads, 0, step, shape, layer,
                    forced, launch.bits);
  LaunchOverlapping(cuda, CachedKernel, launch.slots, kSlotThreads, launch.counts, step, shape,
                    layer, forced, launch.bits);
}

void ForceOverlap(Stream& stream, const StepView& step, const LiteCacheShape& shape,
                  const LiteCacheLayer& layer, const ForcedLayer& forced, void* scratch) {
  const OverlapLaunch launch(step, shape, forced, scratch);
  LaunchOverlapping(AsCuda(stream), ChooseKernel, launch.positions, kSlotThreads, launch.counts,
                    step, shape, layer, forced, launch.bits);
}

}  // namespace litecache::ops::cuda
