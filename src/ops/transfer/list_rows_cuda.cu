// Lists the rows of a transfer, in one list that the host can read.
#include "device/cuda/check.h"
#include "device/cuda/cuda_device.h"
#include "ops/slots/litecache_pair.cuh"
#include "ops/transfer/system_flags.cuh"
#include "ops/transfer/transfer_cuda.h"

namespace litecache::ops::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;

// The number of rows to transfer for a pair.
__device__ __forceinline__ int32_t CountOf(const LiteCacheShape& shape, const LiteCacheLayer& layer,
                                           int32_t pair) {
  if (layer.slots.list_of_head[pair % shape.kv_heads] < 0 || layer.refresh[pair] != 1) return 0;
  return layer.moved_count[pair];
}

// The number of rows of all pairs before `pairs`; the same in every thread.
__device__ int64_t RowsBefore(const LiteCacheShape& shape, const LiteCacheLayer& layer,
                              int32_t pairs, int64_t* warp_sums) {
  int64_t sum = 0;
  for (int32_t i = threadIdx.x; i < pairs; i += kThreads) sum += CountOf(shape, layer, i);
  for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(kFullMask, sum, offset);
  __syncthreads();  // the previous sum has been read
  if (threadIdx.x % 32 == 0) warp_sums[threadIdx.x / 32] = sum;
  __syncthreads();
  int64_t total = 0;
  for (int w = 0; w < kWarps; ++w) total += warp_sums[w];
  return total;
}

// One block per pair; the last one to finish notifies the host.
__global__ void __launch_bounds__(kThreads)
    ListRowsKernel(const __grid_constant__ StepView step,
                   const __grid_constant__ LiteCacheShape shape,
                   const __grid_constant__ LiteCacheLayer layer,
                   const __grid_constant__ TransferList list) {
  __shared__ int64_t warp_sums[kWarps];
  __shared__ bool is_last;
  const int32_t head = blockIdx.x, sequence = blockIdx.y;
  const int32_t pair = sequence * shape.kv_heads + head;
  TransferState& state = *list.state;
  const int32_t pairs = *step.count * shape.kv_heads;
  // Only earlier transfers set it, so all blocks see the same value.
  const bool wants = state.fault == 0;
  const int32_t count = wants && pair < pairs ? CountOf(shape, layer, pair) : 0;
  if (count > 0) {
    const int64_t before = RowsBefore(shape, layer, pair, warp_sums);
    const StepSequence& s = step.sequences[sequence];
    const int32_t stored_list = layer.store.list_of_head[head];
    const int32_t slots_list = layer.slots.list_of_head[head];
    const int64_t room = int64_t{pair} * shape.max_rows;
    for (int32_t i = threadIdx.x; i < count; i += kThreads) {
      const std::byte* source = RowOf(s, layer.store, stored_list, layer.moved_positions[room + i]);
      const std::byte* target = RowOf(s, layer.slots, slots_list, layer.moved_slots[room + i]);
      list.sources[before + i] = reinterpret_cast<uint64_t>(source);
      list.targets[before + i] = reinterpret_cast<uint64_t>(target);
      if (layer.store.format.scales_apart) {
        list.scales[before + i] =
            *ScalesOf(s, layer.store, stored_list, layer.moved_positions[room + i]);
      }
    }
    __threadfence_system();
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    is_last = atomicAdd(&state.arrived, 1u) == gridDim.x * gridDim.y - 1;
  }
  __syncthreads();
  if (!is_last) return;
  const int64_t rows = wants ? RowsBefore(shape, layer, pairs, warp_sums) : 0;
  if (threadIdx.x != 0) return;
  __threadfence_system();  // after the other blocks' writes
  const auto chunk_rows = static_cast<uint64_t>(list.chunk_rows);
  const uint64_t first = state.end_chunk;
  const uint64_t end = first + (static_cast<uint64_t>(rows) + chunk_rows - 1) / chunk_rows;
  state.arrived = 0;
  state.first_chunk = first;
  state.end_chunk = end;
  state.rows = static_cast<uint64_t>(rows);
  state.taken = 0;
  TransferMailbox& mailbox = *list.mailbox;
  mailbox.request = {.first_chunk = first,
                     .rows = static_cast<uint64_t>(rows),
                     .chunk_rows = chunk_rows,
                     .row_bytes = RowBytes(layer.store.format),
                     .sources = list.sources};
  RaiseFlag(&mailbox.asked, end);
}

}  // namespace

void ListRows(Stream& stream, const StepView& step, const LiteCacheShape& shape,
              const LiteCacheLayer& layer, const TransferList& list) {
  LC_CHECK(list.capacity >= int64_t{step.capacity} * shape.kv_heads * shape.max_rows,
           "{} rows listed of {} pairs of {}", list.capacity, step.capacity * shape.kv_heads,
           shape.max_rows);
  LC_CHECK(list.chunk_rows >= 1);
  LC_CHECK(layer.codes.page_slots == 0, "transfers by host threads need slots of unquantized rows");
  const dim3 grid(static_cast<unsigned>(shape.kv_heads), static_cast<unsigned>(step.capacity));
  ListRowsKernel<<<grid, kThreads, 0, AsCuda(stream).handle()>>>(step, shape, layer, list);
  LC_CUDA_LAUNCHED();
}

}  // namespace litecache::ops::cuda
