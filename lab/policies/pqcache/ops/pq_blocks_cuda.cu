// The kernels of policy pqcache's block cache.
#include "device/cuda/check.h"
#include "device/cuda/cuda_device.h"
#include "lab/policies/pqcache/ops/pqcache_cuda.h"
#include "ops/transfer/move_rows.cuh"

namespace litecache::lab::ops::cuda {
namespace {

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / 32;

// Small blocks, as in pull_rows_cuda.cu, which fit on SMs next to a layer's products; enough of
// them to saturate the link.
constexpr int kAdmitThreads = 128;
constexpr int kAdmitWarps = kAdmitThreads / 32;
constexpr unsigned kAdmitBlocks = 80;

// One block per pair. Missed rows keep their order.
__global__ void __launch_bounds__(kThreads)
    PqLookupKernel(const __grid_constant__ StepView step, const __grid_constant__ PqLayer layer) {
  __shared__ int32_t warp_misses[kWarps];
  const int32_t head = blockIdx.x, sequence = blockIdx.y;
  if (sequence >= *step.count) return;
  const int32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int32_t pair = sequence * layer.kv_heads + head;
  const int64_t room = int64_t{pair} * layer.max_rows;
  const PqSequence& own = layer.sequences[sequence];
  int32_t* listed = layer.listed + room;
  int32_t* positions = layer.moved_positions + room;
  int32_t* slots = layer.moved_slots + room;
  if (own.window == 0) {
    const int32_t past = step.sequences[sequence].past;
    for (int32_t i = threadIdx.x; i <= past; i += kThreads) {
      listed[i] = own.staging_begin + i;
      if (i == past) break;
      positions[i] = i;
      slots[i] = own.staging_begin + i;
    }
    if (threadIdx.x == 0) {
      layer.leading[pair] = 0;
      layer.listed_count[pair] = past + 1;
      layer.moved_count[pair] = past;
    }
    return;
  }
  const int32_t* selected = layer.selected + room;
  const int32_t* slot_of = own.slots + int64_t{layer.layer} * own.blocks;
  int32_t* uses = layer.uses + int64_t{sequence} * layer.max_blocks;
  const int32_t count = layer.selected_count[pair];
  int32_t misses = 0;
  for (int32_t base = 0; base < count; base += kThreads) {
    const int32_t i = base + static_cast<int32_t>(threadIdx.x);
    int32_t position = 0, block = 0, slot = -1;
    if (i < count) {
      position = selected[i];
      block = (position - layer.sink) / layer.block_tokens;
      slot = slot_of[block];
      atomicAdd(uses + block, 1);
    }
    const bool missed = i < count && slot < 0;
    const unsigned of_warp = __ballot_sync(kFullMask, missed);
    __syncthreads();  // the previous round's counts have been read
    if (lane == 0) warp_misses[warp] = __popc(of_warp);
    __syncthreads();
    int32_t before = misses + __popc(of_warp & ((1u << lane) - 1));
    for (int32_t w = 0; w < kWarps; ++w) {
      if (w < warp) before += warp_misses[w];
      misses += warp_misses[w];
    }
    if (missed) {
      positions[before] = position;
      slots[before] = own.staging_begin + before;
      listed[i] = own.staging_begin + before;
    } else if (i < count) {
      listed[i] = own.cache_begin + slot * layer.block_tokens +
                  (position - layer.sink - block * layer.block_tokens);
    }
  }
  if (threadIdx.x != 0) return;
  layer.leading[pair] = own.window;
  layer.listed_count[pair] = count;
  layer.moved_count[pair] = misses;
  DeviceHeadCounters& counters = layer.counters[head];
  atomicAdd(&counters.lookups, static_cast<unsigned long long>(count));
  atomicAdd(&counters.hits, static_cast<unsigned long long>(count - misses));
  atomicAdd(&counters.rows_selected, static_cast<unsigned long long>(count));
  atomicAdd(&counters.rows_moved, static_cast<unsigned long long>(misses));
}

// One block per pair.
__global__ void __launch_bounds__(kThreads, 1)
    PqFillWindowKernel(const __grid_constant__ StepView step,
                       const __grid_constant__ PqLayer layer) {
  const int32_t head = blockIdx.x, sequence = blockIdx.y;
  if (sequence >= *step.count) return;
  const PqSequence& own = layer.sequences[sequence];
  if (own.fill == 0) return;
  const StepSequence& s = step.sequences[sequence];
  const int32_t from_list = layer.store.list_of_head[head];
  const int32_t to_list = layer.rows.list_of_head[head];
  const int32_t recent = s.past - own.rows, count = layer.sink + own.rows;
  const auto token = [&](int32_t i) { return i < layer.sink ? i : recent + i - layer.sink; };
  for (int32_t i = threadIdx.x / 32; i < count; i += kWarps) {
    const int32_t t = token(i);
    const int32_t slot = t < layer.sink ? t : layer.sink + t % (own.rows + 1);
    MoveSome(
        1, layer.store.format, layer.rows.format,
        [&](int32_t) { return RowOf(s, layer.store, from_list, t); },
        [&](int32_t) { return RowOf(s, layer.rows, to_list, slot); });
  }
}

// One warp per pair.
__global__ void PqStoreNewKernel(const __grid_constant__ StepView step,
                                 const __grid_constant__ PqLayer layer) {
  const int32_t head = blockIdx.x, sequence = blockIdx.y;
  if (sequence >= *step.count) return;
  const StepSequence& s = step.sequences[sequence];
  MoveSome(
      1, layer.rows.format, layer.store.format,
      [&](int32_t) {
        return RowOf(s, layer.rows, layer.rows.list_of_head[head],
                     layer.sequences[sequence].new_row);
      },
      [&](int32_t) { return RowOf(s, layer.store, layer.store.list_of_head[head], s.past); });
}

// All warps of the grid share one list of pieces, block after block and head after head, as in
// pull_rows_cuda.cu.
__global__ void __launch_bounds__(kAdmitThreads)
    PqAdmitKernel(const __grid_constant__ StepView step, const __grid_constant__ PqLayer layer,
                  const int32_t* begins, const PqAdmission* admissions) {
  const int32_t begin = begins[layer.layer], end = begins[layer.layer + 1];
  const int32_t at_once = RowsAtOnce(layer.store.format);
  const int32_t pieces = (layer.block_tokens + at_once - 1) / at_once;
  const int32_t all = (end - begin) * layer.kv_heads * pieces;
  const auto warps = static_cast<int32_t>(gridDim.x) * kAdmitWarps;
  for (auto i = static_cast<int32_t>(threadIdx.x / 32 * gridDim.x + blockIdx.x); i < all;
       i += warps) {
    const int32_t head = i / pieces % layer.kv_heads, row = i % pieces * at_once;
    const PqAdmission entry = admissions[begin + i / pieces / layer.kv_heads];
    const StepSequence& s = step.sequences[entry.sequence];
    const int32_t from = layer.sink + entry.block * layer.block_tokens + row;
    const int32_t to =
        layer.sequences[entry.sequence].cache_begin + entry.slot * layer.block_tokens + row;
    const int32_t from_list = layer.store.list_of_head[head];
    const int32_t to_list = layer.rows.list_of_head[head];
    MoveSome(
        min(at_once, layer.block_tokens - row), layer.store.format, layer.rows.format,
        [&](int32_t r) { return RowOf(s, layer.store, from_list, from + r); },
        [&](int32_t r) { return RowOf(s, layer.rows, to_list, to + r); });
  }
}

__global__ void __launch_bounds__(kThreads) PqApplyKernel(const __grid_constant__ PqUpdates u) {
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const int32_t changes = __ldcg(u.change_count), entries = __ldcg(u.begins + u.layers);
  for (int32_t i = thread; i <= u.layers; i += kThreads) u.device_begins[i] = __ldcg(u.begins + i);
  constexpr int kWords = sizeof(PqAdmission) / sizeof(int32_t);
  const auto* from = reinterpret_cast<const int32_t*>(u.admissions);
  auto* to = reinterpret_cast<int32_t*>(u.device_admissions);
  for (int32_t i = thread; i < kWords * entries; i += kThreads) to[i] = __ldcg(from + i);
  for (int32_t i = thread; i < changes; i += kThreads) {
    const PqChange change = u.changes[i];
    *change.where = change.slot;
  }
}

dim3 PairGrid(const StepView& step, const PqLayer& layer) {
  return {static_cast<unsigned>(layer.kv_heads), static_cast<unsigned>(step.capacity)};
}

}  // namespace

void PqLookup(Stream& stream, const StepView& step, const PqLayer& layer) {
  if (step.capacity == 0) return;
  PqLookupKernel<<<PairGrid(step, layer), kThreads, 0, AsCuda(stream).handle()>>>(step, layer);
  LC_CUDA_LAUNCHED();
}

void PqStoreNew(Stream& stream, const StepView& step, const PqLayer& layer) {
  CheckMove(layer.rows.format, layer.store.format);
  if (step.capacity == 0) return;
  PqStoreNewKernel<<<PairGrid(step, layer), 32, 0, AsCuda(stream).handle()>>>(step, layer);
  LC_CUDA_LAUNCHED();
}

void PqFillWindow(Stream& stream, const StepView& step, const PqLayer& layer) {
  CheckMove(layer.store.format, layer.rows.format);
  if (step.capacity == 0) return;
  PqFillWindowKernel<<<PairGrid(step, layer), kThreads, 0, AsCuda(stream).handle()>>>(step, layer);
  LC_CUDA_LAUNCHED();
}

void PqApply(Stream& stream, const PqUpdates& updates) {
  PqApplyKernel<<<1, kThreads, 0, AsCuda(stream).handle()>>>(updates);
  LC_CUDA_LAUNCHED();
}

void PqAdmit(Stream& stream, const StepView& step, const PqLayer& layer, const PqUpdates& updates) {
  CheckMove(layer.store.format, layer.rows.format);
  PqAdmitKernel<<<kAdmitBlocks, kAdmitThreads, 0, AsCuda(stream).handle()>>>(
      step, layer, updates.device_begins, updates.device_admissions);
  LC_CUDA_LAUNCHED();
}

}  // namespace litecache::lab::ops::cuda
