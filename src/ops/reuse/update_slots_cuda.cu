#include <algorithm>
#include <cmath>

#include "device/cuda/check.h"
#include "device/cuda/cuda_device.h"
#include "ops/common/overlap.cuh"
#include "ops/common/thread_block_clusters_cuda.h"
#include "ops/reuse/swap_slots_cuda.h"
#include "ops/reuse/update_slots_cuda.h"
#include "ops/select/block_sum.cuh"
#include "ops/select/cluster_bitmap.cuh"
#include "ops/slots/litecache_layer_cuda.h"

namespace litecache::ops::cuda {
namespace {

struct UpdateShared {
  TopKShared top;
  int32_t warp_sums[kTeamWarps];
  int32_t kept;
};

struct ClusterUpdateShared {
  TopKShared top;
  int32_t warp_sums[kClusterWarps];
  int32_t missing, free;  // in this block
};

// Writes the state. Called by one thread, after all have read the head's state: `missing` of its
// `count` selected rows will be transferred, and afterwards `used` slots hold rows. now: the number
// of this update. n: the sequence's number of tokens.
__device__ __forceinline__ void EndUpdate(const LiteCacheShape& shape, const LiteCacheLayer& layer,
                                          int32_t head, int32_t count, int32_t missing,
                                          int32_t used, uint32_t now, int32_t n, bool fill,
                                          HeadState& state) {
  state.used = used;
  state.update = now;
  state.window_begin = shape.windows.RecentBegin(n);
  state.pending = 0;
  if (fill) return;  // counted with the prompt
  atomicAdd(&layer.counters[head].rows_selected, static_cast<unsigned long long>(count));
  atomicAdd(&layer.counters[head].rows_moved, static_cast<unsigned long long>(missing));
}

constexpr int32_t kUpdateThreads = kClusterBlocks * kClusterThreads;  // of a pair
constexpr int kUpdateInFlight = 4;                                    // loads of a thread in flight

// A thread's view of a pair's update by a cluster: each block has a part of the slots and a part of
// the positions.
struct ClusterUpdate {
  const StepSequence& s;
  const LiteCacheShape& shape;
  const LiteCacheLayer& layer;
  const ClusterTeam& team;
  ClusterUpdateShared& shared;
  const ClusterBitmap wanted;  // selected positions; later those without a slot
  uint32_t* is_free;           // one bit per slot of this block
  int32_t list, used;
  uint32_t now;                // the number of this update
  int32_t begin = 0, end = 0;  // this block's slots, in whole words of is_free

  __device__ __forceinline__ int32_t of_team() const {
    return team.rank * kClusterThreads + static_cast<int32_t>(threadIdx.x);
  }
  __device__ __forceinline__ SlotEntry EntryOf(int32_t i) const {
    return SlotOf(s, layer, list, shape.cache_begin + i);
  }

  // first: the thread's first positions, already loaded.
  __device__ __forceinline__ void MarkWanted(const int32_t* selected, int32_t count,
                                             const int32_t (&first)[kUpdateInFlight]) const {
    wanted.Clear();
    team.Sync();
#pragma unroll
    for (int u = 0; u < kUpdateInFlight; ++u) {
      if (of_team() + u * kUpdateThreads < count) wanted.Set(team, first[u]);
    }
    for (int32_t i = of_team() + kUpdateInFlight * kUpdateThreads; i < count; i += kUpdateThreads) {
      wanted.Set(team, selected[i]);
    }
    team.Sync();
  }

  // Slots whose positions are wanted keep them; the block's other slots are free. A thread has
  // several loads in flight, because each is two dependent loads.
  __device__ __forceinline__ void KeepWanted() {
    const int32_t positions = kClusterBlocks * 32 * wanted.OwnWords();
    const int32_t a_block = (used + 32 * kClusterBlocks - 1) / (32 * kClusterBlocks) * 32;
    begin = min(used, team.rank * a_block);
    end = min(used, begin + a_block);
    const auto thread = static_cast<int32_t>(threadIdx.x);
    for (int32_t base = begin; base < end; base += kUpdateInFlight * kClusterThreads) {
      SlotEntry entries[kUpdateInFlight];
      int32_t position[kUpdateInFlight];
#pragma unroll
      for (int u = 0; u < kUpdateInFlight; ++u) {
        const int32_t i = base + u * kClusterThreads + thread;
        position[u] = -1;
        if (i < end) {
          entries[u] = EntryOf(i);
          position[u] = *entries[u].position;
        }
      }
#pragma unroll
      for (int u = 0; u < kUpdateInFlight; ++u) {
        const int32_t i = base + u * kClusterThreads + thread;
        const bool keeps =
            position[u] >= 0 && position[u] < positions && wanted.TakeAway(team, position[u]);
        if (keeps) *entries[u].update = now;
        const unsigned is_victim = __ballot_sync(kFullMask, i < end && !keeps);
        if (thread % 32 == 0 && i < end) is_free[(i - begin) / 32] = is_victim;
      }
    }
    team.Sync();
  }

  // Each thread has consecutive words of the bitmaps, so that positions and slots come out in
  // ascending order: where its bits go in the pair's lists, and the lists' lengths.
  struct Lists {
    int32_t words, first_free, last_free;  // of this thread
    int32_t next, next_free;               // its places in the lists
    int32_t missing, free;                 // of all threads
  };
  __device__ __forceinline__ Lists Count() const {
    const auto thread = static_cast<int32_t>(threadIdx.x);
    Lists lists;
    lists.words = wanted.OwnWords() / kClusterThreads;
    int32_t bits = 0, of_block;
    for (int32_t w = 0; w < lists.words; ++w) bits += __popc(wanted.own[thread * lists.words + w]);
    lists.next = BlockExclusiveSum<kClusterThreads>(bits, shared.warp_sums, &of_block);
    if (thread == 0) shared.missing = of_block;
    const int32_t free_words = (end - begin + 31) / 32;
    const int32_t a_thread = (free_words + kClusterThreads - 1) / kClusterThreads;
    lists.first_free = min(free_words, thread * a_thread);
    lists.last_free = min(free_words, lists.first_free + a_thread);
    bits = 0;
    for (int32_t w = lists.first_free; w < lists.last_free; ++w) bits += __popc(is_free[w]);
    lists.next_free = BlockExclusiveSum<kClusterThreads>(bits, shared.warp_sums, &of_block);
    if (thread == 0) shared.free = of_block;
    team.Sync();
    const ClusterSums of_missing = SumOverCluster(team, &shared.missing);
    const ClusterSums of_free = SumOverCluster(team, &shared.free);
    lists.next += of_missing.before;
    lists.next_free += of_free.before;
    lists.missing = of_missing.all;
    lists.free = of_free.all;
    return lists;
  }

  // Lists the wanted positions that have no slot.
  __device__ __forceinline__ void ListMissing(const Lists& lists, int32_t* positions) const {
    const auto thread = static_cast<int32_t>(threadIdx.x);
    int32_t next = lists.next;
    for (int32_t w = 0; w < lists.words; ++w) {
      const int32_t of_cluster = team.rank * wanted.OwnWords() + thread * lists.words + w;
      for (uint32_t word = wanted.own[thread * lists.words + w]; word != 0; word &= word - 1) {
        positions[next++] = 32 * of_cluster + __ffs(static_cast<int>(word)) - 1;
      }
    }
  }

  // Lists slots for them: `victims` of the free ones, those selected longest ago (among equals the
  // lower ones), then `fresh` ones that were never used.
  __device__ __forceinline__ void ListSlots(const Lists& lists, int32_t victims, int32_t fresh,
                                            int32_t* slots) const {
    if (victims == lists.free) {
      int32_t next = lists.next_free;
      for (int32_t w = lists.first_free; w < lists.last_free; ++w) {
        for (uint32_t word = is_free[w]; word != 0; word &= word - 1) {
          slots[next++] = shape.cache_begin + begin + 32 * w + __ffs(static_cast<int>(word)) - 1;
        }
      }
    } else if (victims > 0) {
      // Slots of this update have the highest number, so they are never chosen.
      const auto age = [&](int32_t i) { return ~*EntryOf(begin + i).update; };
      const Threshold threshold =
          FindThreshold<kClusterThreads>(team, shared.top, end - begin, victims, age);
      TakeAbove<kClusterThreads>(
          team, shared.top, end - begin, threshold, age,
          [&](int32_t order, int32_t i) { slots[order] = shape.cache_begin + begin + i; });
    }
    for (int32_t i = of_team(); i < fresh; i += kUpdateThreads) {
      slots[victims + i] = shape.cache_begin + used + i;
    }
  }

  // Writes the slots' new positions. Call after a Sync.
  __device__ __forceinline__ void Enter(const int32_t* positions, const int32_t* slots,
                                        int32_t missing) const {
    for (int32_t i = of_team(); i < missing; i += kUpdateThreads) {
      const SlotEntry entry = SlotOf(s, layer, list, __ldcg(slots + i));
      *entry.position = __ldcg(positions + i);
      *entry.update = now;
    }
  }
};

// For heads with more slots than rows: the slots that remain are the most recently selected ones.
//
// One cluster per pair, on GPUs with clusters; otherwise UpdateSlotsKernel does the same.
LC_CLUSTER __global__ void __launch_bounds__(kClusterThreads)
    ClusterUpdateKernel(const __grid_constant__ StepView step,
                        const __grid_constant__ LiteCacheShape shape,
                        const __grid_constant__ LiteCacheLayer layer, bool fill, int shift) {
  extern __shared__ uint32_t dynamic[];
  __shared__ ClusterUpdateShared shared;
  WaitForKernelBefore();
  const ClusterTeam team;
  const int32_t pair = static_cast<int32_t>(blockIdx.x) / kClusterBlocks;
  const int32_t head = pair % shape.kv_heads, sequence = pair / shape.kv_heads;
  const int32_t of_team = team.rank * kClusterThreads + static_cast<int32_t>(threadIdx.x);
  // Beside products a load takes microseconds, so independent loads are issued together.
  const StepSequence& s = step.sequences[sequence];
  const int32_t sequences = *step.count, list = layer.slots.list_of_head[head];
  const int32_t refresh = layer.refresh[pair], count = layer.selected_count[pair];
  const int64_t room = int64_t{pair} * shape.max_rows;
  const int32_t* selected = layer.selected + room;
  int32_t first_selected[kUpdateInFlight];
#pragma unroll
  for (int u = 0; u < kUpdateInFlight; ++u) {
    const int32_t i = of_team + u * kUpdateThreads;
    first_selected[u] = i < shape.max_rows ? selected[i] : 0;
  }
  HeadState* const heads = s.heads;
  const int32_t n = fill ? s.past : s.past + 1;
  if (sequence >= sequences || list < 0 || refresh != 1) return;
  HeadState& state = heads[list];
  const int32_t used = state.used;
  int32_t* moved_positions = layer.moved_positions + room;
  int32_t* moved_slots = layer.moved_slots + room;

  const ClusterBitmap wanted{dynamic, shift};
  ClusterUpdate update{
      s,    shape, layer,           team, shared, wanted, dynamic + wanted.OwnWords(),
      list, used,  state.update + 1};
  update.MarkWanted(selected, count, first_selected);
  update.KeepWanted();
  const ClusterUpdate::Lists lists = update.Count();
  update.ListMissing(lists, moved_positions);
  const int32_t missing = lists.missing;
  const int32_t fresh = max(0, min(missing, shape.windows.CacheSlots(n) - used));
  update.ListSlots(lists, missing - fresh, fresh, moved_slots);
  team.Sync();  // other blocks' writes are visible; they have read this one's shared memory
  update.Enter(moved_positions, moved_slots, missing);
  team.Sync();  // all have read the state
  if (of_team != 0) return;
  layer.moved_count[pair] = missing;
  EndUpdate(shape, layer, head, count, missing, used + fresh, update.now, n, fill, state);
}

// Bytes of a block's shared memory for the bits of free slots.
size_t FreeSlotsBytes(const LiteCacheShape& shape) {
  const double slots = std::ceil(shape.max_rows * shape.windows.slots_factor);
  return static_cast<size_t>(slots / (32 * kClusterBlocks) + 2) * 4;
}

// One block per pair. There is no map from positions to slots: from a bitmap of the selected
// positions, those that have a slot are cleared; the rest must be transferred.
__global__ void __launch_bounds__(kTeamThreads, 1)
    UpdateSlotsKernel(const __grid_constant__ StepView step,
                      const __grid_constant__ LiteCacheShape shape,
                      const __grid_constant__ LiteCacheLayer layer, bool fill, uint32_t* scratch,
                      int32_t max_words) {
  extern __shared__ uint32_t dynamic[];
  __shared__ UpdateShared shared;
  WaitForKernelBefore();
  const int32_t head = blockIdx.x, sequence = blockIdx.y;
  const int32_t thread = threadIdx.x;
  if (sequence >= *step.count) return;
  const int32_t pair = sequence * shape.kv_heads + head;
  const int32_t list = layer.slots.list_of_head[head];
  if (list < 0 || layer.refresh[pair] != 1) return;
  const StepSequence& s = step.sequences[sequence];
  HeadState& state = s.heads[list];
  const int32_t n = fill ? s.past : s.past + 1;
  const int32_t count = layer.selected_count[pair];
  const int32_t used = state.used;
  const uint32_t now = state.update + 1;
  const int64_t room = int64_t{pair} * shape.max_rows;
  const int32_t* selected = layer.selected + room;
  int32_t* moved_positions = layer.moved_positions + room;
  int32_t* moved_slots = layer.moved_slots + room;
  __syncthreads();  // before thread 0 changes the state

  int32_t missing;
  uint32_t* wanted = scratch != nullptr ? scratch + int64_t{pair} * max_words : dynamic;
  const int32_t words = min((n + 31) / 32, max_words);
  for (int32_t w = thread; w < words; w += kTeamThreads) wanted[w] = 0;
  if (thread == 0) shared.kept = 0;
  __syncthreads();
  for (int32_t i = thread; i < count; i += kTeamThreads) {
    const int32_t position = selected[i];
    atomicOr(wanted + position / 32, 1u << position % 32);
  }
  __syncthreads();
  int32_t kept = 0;
  for (int32_t i = thread; i < used; i += kTeamThreads) {
    const SlotEntry entry = SlotOf(s, layer, list, shape.cache_begin + i);
    const int32_t position = *entry.position;
    if (position / 32 >= words) continue;
    const uint32_t bit = 1u << position % 32;
    if ((wanted[position / 32] & bit) == 0) continue;
    atomicAnd(wanted + position / 32, ~bit);
    *entry.update = now;
    ++kept;
  }
  kept = __reduce_add_sync(kFullMask, kept);
  if (thread % 32 == 0 && kept > 0) atomicAdd(&shared.kept, kept);
  __syncthreads();
  kept = shared.kept;

  // Each thread has consecutive words, so that positions come out in ascending order.
  const int32_t a_thread = (words + kTeamThreads - 1) / kTeamThreads;
  const int32_t first = min(words, thread * a_thread), last = min(words, first + a_thread);
  int32_t bits = 0;
  for (int32_t w = first; w < last; ++w) bits += __popc(wanted[w]);
  int32_t next = BlockExclusiveSum(bits, shared.warp_sums, &missing);
  for (int32_t w = first; w < last; ++w) {
    for (uint32_t word = wanted[w]; word != 0; word &= word - 1) {
      moved_positions[next++] = 32 * w + __ffs(static_cast<int>(word)) - 1;
    }
  }

  const int32_t capacity = shape.windows.CacheSlots(n);
  const int32_t fresh = max(0, min(missing, capacity - used));
  const int32_t victims = missing - fresh, used_then = used + fresh;
  // The slots selected longest ago; among equals the lower ones. Slots of this update have the
  // highest number, so they are never chosen.
  const auto age = [&](int32_t i) {
    return ~*SlotOf(s, layer, list, shape.cache_begin + i).update;
  };
  const auto place = [&](int32_t order, int32_t i) { moved_slots[order] = shape.cache_begin + i; };
  if (victims > 0) {
    const BlockTeam team;
    const Threshold threshold = victims == used - kept
                                    ? Threshold{~now, 0}  // all that are not of this update
                                    : FindThreshold(team, shared.top, used, victims, age);
    TakeAbove(team, shared.top, used, threshold, age, place);
  }
  for (int32_t i = thread; i < fresh; i += kTeamThreads) {
    moved_slots[victims + i] = shape.cache_begin + used + i;
  }
  __syncthreads();
  for (int32_t i = thread; i < missing; i += kTeamThreads) {
    const SlotEntry entry = SlotOf(s, layer, list, moved_slots[i]);
    *entry.position = moved_positions[i];
    *entry.update = now;
  }
  if (thread != 0) return;
  layer.moved_count[pair] = missing;
  EndUpdate(shape, layer, head, count, missing, used_then, now, n, fill, state);
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
  state.pending = 0;
  state.window_begin = shape.windows.RecentBegin(s.past);
}

}  // namespace

size_t UpdateSlotsScratchBytes(const LiteCacheShape& shape, int64_t capacity, int64_t max_context) {
  return std::max(SwapSlotsScratchBytes(shape, capacity, max_context),
                  static_cast<size_t>(capacity * shape.kv_heads * BitmapWords(max_context)) * 4);
}

void UpdateSlots(Stream& stream, const StepView& step, const LiteCacheShape& shape,
                 const LiteCacheLayer& layer, bool delta, bool fill, void* scratch) {
  // Slots that are not selected stay filled if there are more slots than rows.
  const bool spare = shape.windows.slots_factor > 1 || shape.windows.by_need;
  if (!spare || !delta) {
    SwapSlots(stream, step, shape, layer, delta, fill, scratch);
    return;
  }
  const int shift = ClusterBitmapShift(step.max_context);
  const size_t cluster_bytes = ClusterBitmapBytes(shift) + FreeSlotsBytes(shape);
  if (UseClusters() && cluster_bytes <= kMaxClusterBytes) {
    const auto pairs = static_cast<unsigned>(step.capacity * shape.kv_heads);
    LaunchOverlapping(AsCuda(stream), ClusterUpdateKernel, pairs * kClusterBlocks, kClusterThreads,
                      cluster_bytes, step, shape, layer, fill, shift);
    return;
  }
  const bool in_shared = step.max_context <= kSharedPositions;
  LC_CHECK(in_shared || scratch != nullptr, "a context of {} needs scratch", step.max_context);
  const int32_t words = BitmapWords(step.max_context);
  const int bytes = in_shared ? 4 * words : 0;
  LC_CUDA(cudaFuncSetAttribute(UpdateSlotsKernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               kSharedPositions / 8));
  const dim3 grid(static_cast<unsigned>(shape.kv_heads), static_cast<unsigned>(step.capacity));
  LaunchOverlapping(AsCuda(stream), UpdateSlotsKernel, grid, kTeamThreads,
                    static_cast<size_t>(bytes), step, shape, layer, fill,
                    in_shared ? nullptr : static_cast<uint32_t*>(scratch), words);
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
