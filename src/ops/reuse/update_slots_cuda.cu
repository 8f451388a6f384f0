// There is no map from positions to slots. Instead, three kernels of many small blocks:
//   mark   sets a bitmap of the selected positions
//   sweep  visits every slot: if its position is selected, the bit is cleared, otherwise the slot
//          is free; the positions left in the bitmap must be transferred
//   place  assigns the i-th remaining position to the i-th free slot, counted from where the last
//          update ended; blocks take equal shares
#include <algorithm>
#include <cmath>

#include "device/cuda/check.h"
#include "device/cuda/cuda_device.h"
#include "ops/common/overlap.cuh"
#include "ops/reuse/slot_bits.cuh"
#include "ops/reuse/update_slots_cuda.h"

namespace litecache::ops::cuda {
namespace {

constexpr int kPlaceRows = 1024;  // handled by a block at a time
constexpr int kProbes = 2;        // of a thread in a search

// The first values that every kernel loads, all at once: beside products a load takes microseconds.
struct UpdatePair {
  int32_t pair, list, count;  // count: selected rows
  const StepSequence* s;

  // False if the pair is not refreshed.
  __device__ bool Find(const StepView& step, const LiteCacheShape& shape,
                       const LiteCacheLayer& layer) {
    pair = static_cast<int32_t>(blockIdx.y);
    const int32_t sequence = pair / shape.kv_heads;
    s = &step.sequences[sequence];
    list = layer.slots.list_of_head[pair % shape.kv_heads];
    count = layer.selected_count[pair];
    const int32_t sequences = *step.count, refresh = layer.refresh[pair];
    return sequence < sequences && list >= 0 && refresh == 1;
  }
};

// Counts how many of `count` ascending positions are below each of two bounds. Called by the whole
// block.
struct Bounds {
  int32_t first, second;
};
__device__ Bounds CountBelow(const int32_t* positions, int32_t count, const Bounds& bounds,
                             int32_t (*warp_sums)[kSlotWarps]) {
  Bounds low = {0, 0}, high = {count, count};
  for (int turn = 0; low.first < high.first || low.second < high.second; turn ^= 1) {
    constexpr int32_t kAll = kProbes * kSlotThreads;
    const auto stride = [](int32_t from, int32_t to) { return (to - from + kAll - 1) / kAll; };
    const Bounds strides = {stride(low.first, high.first), stride(low.second, high.second)};
    int32_t probes[2][kProbes];
#pragma unroll
    for (int u = 0; u < kProbes; ++u) {
      const auto at = static_cast<int32_t>(threadIdx.x) * kProbes + u + 1;
      const int32_t first = low.first + at * strides.first - 1;
      const int32_t second = low.second + at * strides.second - 1;
      probes[0][u] = low.first < high.first && first < high.first ? positions[first] : INT32_MAX;
      probes[1][u] =
          low.second < high.second && second < high.second ? positions[second] : INT32_MAX;
    }
    int32_t below = 0;  // for the first bound; in the upper 16 bits for the second one
#pragma unroll
    for (int u = 0; u < kProbes; ++u) {
      below += (probes[0][u] < bounds.first ? 1 : 0) + (probes[1][u] < bounds.second ? 1 << 16 : 0);
    }
    int32_t all;
    SumBefore<kSlotWarps>(below, warp_sums[turn], &all);
    const Bounds found = {all & 0xffff, all >> 16};
    high.first = min(high.first, low.first + (found.first + 1) * strides.first - 1);
    high.second = min(high.second, low.second + (found.second + 1) * strides.second - 1);
    low.first += found.first * strides.first;
    low.second += found.second * strides.second;
    // The search had already ended.
    high.first = max(high.first, low.first);
    high.second = max(high.second, low.second);
  }
  return low;
}

// A block handles kBlockParts parts of the positions.
__global__ void __launch_bounds__(kSlotThreads, 4)
    MarkKernel(const __grid_constant__ StepView step, const __grid_constant__ LiteCacheShape shape,
               const __grid_constant__ LiteCacheLayer layer, const __grid_constant__ SlotBits bits,
               bool delta) {
  __shared__ uint4 own[kBlockWords / 4];
  __shared__ int32_t warp_sums[2][kSlotWarps];
  WaitForKernelBefore();
  LetNextKernelStart();
  UpdatePair at;
  if (!at.Find(step, shape, layer)) return;
  const auto thread = static_cast<int32_t>(threadIdx.x), block = static_cast<int32_t>(blockIdx.x);
  if (block == 0 && thread == 0) {
    // Copied, because the last kernel changes the state while its other blocks run.
    const HeadState& state = at.s->heads[at.list];
    *bits.HeaderOf(at.pair) = {state.used, state.update + 1, state.next_victim, 0};
  }
  if (!delta) return;
  for (int i = thread; i < kBlockWords / 4; i += kSlotThreads) own[i] = {0, 0, 0, 0};
  const int32_t begin = block * 32 * kBlockWords;
  const int32_t* selected = layer.selected + int64_t{at.pair} * shape.max_rows;
  const Bounds range = CountBelow(selected, at.count, {begin, begin + 32 * kBlockWords}, warp_sums);
  __syncthreads();
  auto* words = reinterpret_cast<uint32_t*>(own);
  constexpr int kInFlight = 4;
  for (int32_t base = range.first + thread; base < range.second; base += kInFlight * kSlotThreads) {
    int32_t position[kInFlight];
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) {
      const int32_t i = base + u * kSlotThreads;
      position[u] = i < range.second ? selected[i] - begin : -1;
    }
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) {
      if (position[u] >= 0) atomicOr(words + position[u] / 32, 1u << position[u] % 32);
    }
  }
  __syncthreads();
  // Each lane of half a warp holds four of a part's words.
  static_assert(kBlockWords <= 4 * kSlotThreads && kPartWords == 4 * 16);
  const bool has_words = thread < kBlockWords / 4;
  const uint4 four = has_words ? own[thread] : uint4{};
  int32_t count = __popc(four.x) + __popc(four.y) + __popc(four.z) + __popc(four.w);
#pragma unroll
  for (int distance = 1; distance < 16; distance *= 2) {
    count += __shfl_xor_sync(kFullMask, count, distance);
  }
  if (!has_words) return;
  reinterpret_cast<uint4*>(bits.Of(at.pair, bits.positions()) +
                           int64_t{block} * kBlockWords)[thread] = four;
  if (thread % 16 == 0) {
    bits.Of(at.pair, bits.counts())[block * kBlockParts + thread / 16] =
        static_cast<uint32_t>(count);
  }
}

// A block handles one part of the slots.
__global__ void __launch_bounds__(kSlotThreads, 4)
    SweepKernel(const __grid_constant__ StepView step, const __grid_constant__ LiteCacheShape shape,
                const __grid_constant__ LiteCacheLayer layer,
                const __grid_constant__ SlotBits bits) {
  extern __shared__ uint32_t kept_of_part[];  // [bits.parts]
  __shared__ int32_t free_slots;
  const auto thread = static_cast<int32_t>(threadIdx.x), part = static_cast<int32_t>(blockIdx.x);
  for (int32_t p = thread; p < bits.parts; p += kSlotThreads) kept_of_part[p] = 0;
  if (thread == 0) free_slots = 0;
  WaitForKernelBefore();
  LetNextKernelStart();
  UpdatePair at;
  if (!at.Find(step, shape, layer)) return;
  const auto header = __ldcg(reinterpret_cast<const int2*>(bits.HeaderOf(at.pair)));
  const int32_t used = header.x, first = part * kPartBits;
  const auto now = static_cast<uint32_t>(header.y);
  if (first >= used) return;
  __syncthreads();
  uint32_t* wanted = bits.Of(at.pair, bits.positions());
  const int32_t positions = kPartBits * bits.parts;
  constexpr int kInFlight = kPartBits / kSlotThreads;
  SlotEntry entries[kInFlight];
  int32_t position[kInFlight];
#pragma unroll
  for (int u = 0; u < kInFlight; ++u) {
    const int32_t i = first + u * kSlotThreads + thread;
    position[u] = -1;
    if (i < used) {
      entries[u] = SlotOf(*at.s, layer, at.list, shape.cache_begin + i);
      position[u] = *entries[u].position;
    }
  }
  uint32_t had[kInFlight];
#pragma unroll
  for (int u = 0; u < kInFlight; ++u) {
    had[u] = 0;
    if (position[u] >= 0 && position[u] < positions) {
      const uint32_t bit = 1u << position[u] % 32;
      had[u] = atomicAnd(wanted + position[u] / 32, ~bit) & bit;
    }
  }
  int32_t free_of_warp = 0;
#pragma unroll
  for (int u = 0; u < kInFlight; ++u) {
    const int32_t i = first + u * kSlotThreads + thread;
    if (had[u] != 0) {
      *entries[u].update = now;
      atomicAdd(kept_of_part + position[u] / kPartBits, 1u);
    }
    const unsigned is_free = __ballot_sync(kFullMask, i < used && had[u] == 0);
    if (thread % 32 == 0) bits.Of(at.pair, bits.free())[i / 32] = is_free;
    free_of_warp += __popc(is_free);
  }
  if (thread % 32 == 0) atomicAdd(&free_slots, free_of_warp);
  __syncthreads();
  uint32_t* counts = bits.Of(at.pair, bits.counts());
  for (int32_t p = thread; p < bits.parts; p += kSlotThreads) {
    if (kept_of_part[p] != 0) atomicSub(counts + p, kept_of_part[p]);
  }
  if (thread == 0) {
    bits.Of(at.pair, bits.free_counts())[part] = static_cast<uint32_t>(free_slots);
  }
}

struct PlaceShared {
  int32_t warp_sums[2][kSlotWarps];
  int32_t positions[kPlaceRows], slots[kPlaceRows];
};

__global__ void __launch_bounds__(kSlotThreads, 4)
    PlaceKernel(const __grid_constant__ StepView step, const __grid_constant__ LiteCacheShape shape,
                const __grid_constant__ LiteCacheLayer layer, const __grid_constant__ SlotBits bits,
                bool delta, bool fill) {
  extern __shared__ int32_t befores[];  // [bits.parts + 1], [bits.slot_parts + 1]
  __shared__ PlaceShared shared;
  WaitForKernelBefore();
  LetNextKernelStart();
  UpdatePair at;
  if (!at.Find(step, shape, layer)) return;
  const auto thread = static_cast<int32_t>(threadIdx.x), block = static_cast<int32_t>(blockIdx.x);
  const auto header = __ldcg(reinterpret_cast<const int4*>(bits.HeaderOf(at.pair)));
  const int32_t used = header.x;
  const auto now = static_cast<uint32_t>(header.y);
  const int64_t room = int64_t{at.pair} * shape.max_rows;
  const int32_t* selected = layer.selected + room;
  int32_t* moved_positions = layer.moved_positions + room;
  int32_t* moved_slots = layer.moved_slots + room;
  const int32_t n = fill ? at.s->past : at.s->past + 1;

  int32_t* free_befores = befores + bits.parts + 1;
  const int32_t slot_parts = (used + kPartBits - 1) / kPartBits;
  // is_free: slots whose rows are not selected again, of which `victims` are replaced, in turn from
  // that of rank first_victim on.
  int32_t missing = at.count, victims = 0, used_then = at.count, is_free = 0, first_victim = 0;
  if (delta) {
    missing = SumParts(bits.Of(at.pair, bits.counts()), bits.parts, shared.warp_sums[0], befores);
    is_free = SumParts(bits.Of(at.pair, bits.free_counts()), slot_parts, shared.warp_sums[1],
                       free_befores);
    const int32_t fresh = max(0, min(missing, shape.windows.CacheSlots(n) - used));
    victims = missing - fresh;
    used_then = used + fresh;
    first_victim = BitsBefore(bits.Of(at.pair, bits.free()), free_befores, slot_parts, header.z);
  }
  const int32_t blocks = static_cast<int32_t>(gridDim.x);
  const int32_t a_block = (missing + blocks - 1) / blocks;
  const int32_t first = min(missing, block * a_block), last = min(missing, first + a_block);
  HeadState& state = at.s->heads[at.list];
  for (int32_t begin = first; begin < last; begin += kPlaceRows) {
    const int32_t end = min(last, begin + kPlaceRows);
    if (delta) {
      FindRanks(bits.Of(at.pair, bits.positions()), befores, bits.parts, begin, end,
                shared.positions);
      const int32_t count = min(end, victims) - begin;
      if (count > 0) {
        const uint32_t* free_slots = bits.Of(at.pair, bits.free());
        const int32_t from = (first_victim + begin) % is_free;
        const int32_t until = min(from + count, is_free);
        FindRanks(free_slots, free_befores, slot_parts, from, until, shared.slots);
        FindRanks(free_slots, free_befores, slot_parts, 0, from + count - until,
                  shared.slots + (until - from));
      }
    }
    __syncthreads();
    for (int32_t rank = begin + thread; rank < end; rank += kSlotThreads) {
      int32_t position, slot;
      if (!delta) {
        position = selected[rank];
        slot = shape.cache_begin + rank;
      } else {
        position = shared.positions[rank - begin];
        slot = shape.cache_begin +
               (rank < victims ? shared.slots[rank - begin] : used + rank - victims);
        if (rank == victims - 1) state.next_victim = slot - shape.cache_begin + 1;
      }
      const SlotEntry entry = SlotOf(*at.s, layer, at.list, slot);
      moved_positions[rank] = position;
      moved_slots[rank] = slot;
      *entry.position = position;
      *entry.update = now;
    }
    __syncthreads();
  }
  if (block != 0 || thread != 0) return;
  layer.moved_count[at.pair] = missing;
  state.used = used_then;
  state.update = now;
  state.window_begin = shape.windows.RecentBegin(n);
  state.pending = 0;
  if (fill) return;  // counted with the prompt
  DeviceHeadCounters& counters = layer.counters[at.pair % shape.kv_heads];
  atomicAdd(&counters.rows_selected, static_cast<unsigned long long>(at.count));
  atomicAdd(&counters.rows_moved, static_cast<unsigned long long>(missing));
}

__global__ void BeginFillKernel(const __grid_constant__ StepView step,
                                const __grid_constant__ LiteCacheShape shape,
                                const __grid_constant__ LiteCacheLayer layer, const int32_t* fill) {
  const int32_t pair = blockIdx.x * blockDim.x + threadIdx.x;
  const int32_t sequence = pair / shape.kv_heads, head = pair % shape.kv_heads;
  if (sequence >= *step.count) return;
  const StepSequence& s = step.sequences[sequence];
  const int32_t list = layer.slots.list_of_head[head];
  const bool fills = list >= 0 && fill[sequence] != 0;
  layer.refresh[pair] = fills && shape.windows.Candidates(s.past) > 0 ? 1 : 0;
  layer.moved_count[pair] = 0;
  if (!fills) return;
  HeadState& state = s.heads[list];
  state.used = 0;
  state.next_victim = 0;
  state.pending = 0;
  state.window_begin = shape.windows.RecentBegin(s.past);
}

}  // namespace

size_t UpdateSlotsScratchBytes(const LiteCacheShape& shape, int64_t capacity, int64_t max_context) {
  const SlotBits bits = SlotBitsOf(max_context, MostSlots(shape), nullptr);
  return static_cast<size_t>(4 * capacity * shape.kv_heads * bits.pair_words());
}

void UpdateSlots(Stream& stream, const StepView& step, const LiteCacheShape& shape,
                 const LiteCacheLayer& layer, bool delta, bool fill, void* scratch) {
  LC_CHECK(scratch != nullptr);
  CudaStream& cuda = AsCuda(stream);
  const SlotBits bits = SlotBitsOf(step.max_context, MostSlots(shape), scratch);
  const auto pairs = static_cast<unsigned>(step.capacity * shape.kv_heads);
  const auto count = [](int64_t n) { return static_cast<unsigned>(n); };
  const dim3 mark(delta ? count(bits.parts / kBlockParts) : 1, pairs);
  LaunchOverlapping(cuda, MarkKernel, mark, kSlotThreads, 0, step, shape, layer, bits, delta);
  if (delta) {
    LaunchOverlapping(cuda, SweepKernel, dim3(count(bits.slot_parts), pairs), kSlotThreads,
                      4 * static_cast<size_t>(bits.parts), step, shape, layer, bits);
  }
  const int64_t place = std::max<int64_t>(1, (shape.max_rows + kPlaceRows - 1) / kPlaceRows);
  LaunchOverlapping(cuda, PlaceKernel, dim3(count(place), pairs), kSlotThreads,
                    delta ? 4 * static_cast<size_t>(bits.parts + bits.slot_parts + 2) : 0, step,
                    shape, layer, bits, delta, fill);
}

void BeginFill(Stream& stream, const StepView& step, const LiteCacheShape& shape,
               const LiteCacheLayer& layer, const int32_t* fill) {
  constexpr int kThreads = 128;
  const int pairs = step.capacity * shape.kv_heads;
  BeginFillKernel<<<(pairs + kThreads - 1) / kThreads, kThreads, 0, AsCuda(stream).handle()>>>(
      step, shape, layer, fill);
  LC_CUDA_LAUNCHED();
}

}  // namespace litecache::ops::cuda
