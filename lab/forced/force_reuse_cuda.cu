#include "device/cuda/check.h"
#include "device/cuda/cuda_device.h"
#include "lab/forced/force_reuse_cuda.h"
#include "lab/forced/take_words.cuh"
#include "ops/common/overlap.cuh"
#include "ops/reuse/slot_bits.cuh"

namespace litecache::lab::ops::cuda {
namespace {

__device__ ForcedHead Forced(const ForcedLayer& forced, const StepSequence& s, int32_t head) {
  const int32_t step = ForcedStep(s.past, s.first_row, forced.steps);
  return forced.heads[int64_t{step} * forced.stride + head];
}

// One thread per head of a sequence and kind of lookup.
__global__ void ForceThresholdsKernel(const __grid_constant__ StepView step,
                                      const __grid_constant__ ForcedThresholds forced) {
  const int32_t head = blockIdx.x * blockDim.x + threadIdx.x, sequence = blockIdx.y;
  if (sequence >= *step.count || head >= forced.heads) return;
  const StepSequence& s = step.sequences[sequence];
  const int64_t from = int64_t{ForcedStep(s.past, s.first_row, forced.steps)} * forced.heads + head;
  const int32_t layer = head / forced.kv_heads;
  const int64_t to = (int64_t{layer} * forced.sequences + sequence) * forced.kv_heads + head -
                     layer * forced.kv_heads;
  forced.lookups[to] = forced.table[from];
  forced.checks[to] = forced.check_table[from];
}

// A pair whose selection is to be replaced.
struct OverlapPair {
  int32_t pair, list, begin, end;  // candidates
  ForcedHead forced;
  const StepSequence* s;

  __device__ bool Find(const StepView& step, const LiteCacheShape& shape,
                       const LiteCacheLayer& layer, const ForcedLayer& layer_forced) {
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
    forced = Forced(layer_forced, *s, head);
    return true;
  }
  // Of the selection.
  __device__ int32_t Count(const LiteCacheShape& shape) const {
    return min(end - begin, ForcedRowCount(forced, shape.windows.Rows(s->past + 1)));
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
                 const __grid_constant__ ForcedLayer forced, const __grid_constant__ SlotBits bits,
                 int32_t* selected, int32_t* selected_count) {
  extern __shared__ int32_t befores[];  // [bits.parts + 1]
  __shared__ int32_t warp_sums[kSlotWarps];
  WaitForKernelBefore();
  LetNextKernelStart();
  OverlapPair at;
  if (!at.Find(step, shape, layer, forced)) return;
  const int32_t count = at.Count(shape);
  if (blockIdx.x == 0 && threadIdx.x == 0) selected_count[at.pair] = count;
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
    TakeWords(w, w + 1, at.begin, at.end, count, at.forced.kept, cached, cached_before,
              selected + int64_t{at.pair} * shape.max_rows, [&](int32_t) { return two[i]; });
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

void ForceThresholds(Stream& stream, const StepView& step, const ForcedThresholds& forced) {
  LC_CHECK(forced.table != nullptr && forced.steps >= 1 && step.capacity <= forced.sequences);
  if (step.capacity == 0) return;
  constexpr int kThreads = 128;
  const dim3 grid(static_cast<unsigned>((forced.heads + kThreads - 1) / kThreads),
                  static_cast<unsigned>(step.capacity));
  ForceThresholdsKernel<<<grid, kThreads, 0, AsCuda(stream).handle()>>>(step, forced);
  LC_CUDA_LAUNCHED();
}

size_t ForceScratchBytes(const LiteCacheShape& shape, int64_t capacity, int64_t max_context) {
  const SlotBits bits = SlotBitsOf(max_context, MostSlots(shape), nullptr);
  return static_cast<size_t>(4 * capacity * shape.kv_heads * bits.pair_words());
}

void ForceOverlap(Stream& stream, const StepView& step, const LiteCacheShape& shape,
                  const LiteCacheLayer& layer, const ForcedLayer& forced, int32_t* selected,
                  int32_t* selected_count, void* scratch) {
  const OverlapLaunch launch(step, shape, forced, scratch);
  CudaStream& cuda = AsCuda(stream);
  LaunchOverlapping(cuda, ClearKernel, launch.positions, kSlotThreads, 0, step, shape, layer,
                    forced, launch.bits);
  LaunchOverlapping(cuda, CachedKernel, launch.slots, kSlotThreads, launch.counts, step, shape,
                    layer, forced, launch.bits);
  LaunchOverlapping(cuda, ChooseKernel, launch.positions, kSlotThreads, launch.counts, step, shape,
                    layer, forced, launch.bits, selected, selected_count);
}

}  // namespace litecache::lab::ops::cuda
