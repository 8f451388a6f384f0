// Reads rows from the store into slots, layer after layer of a step.
#include <algorithm>

#include "device/cuda/check.h"
#include "device/cuda/cuda_device.h"
#include "ops/common/overlap.cuh"
#include "ops/transfer/pull_layer.cuh"
#include "ops/transfer/pull_step_cuda.h"
#include "ops/transfer/system_flags.cuh"

namespace litecache::ops::cuda {
namespace {

constexpr unsigned kPollNanoseconds = 32;
// Warps that pull, in a block that has an SM of its own: with as many loads in flight as 48 blocks
// of PullRows have on 8 SMs. Dequantizing takes more registers. With the extra warp below they fill
// the SM's four partitions evenly, which determines the registers of each.
template <Pulled kPulled>
constexpr int kPullWarps = kPulled == Pulled::kPlain ? 23 : 15;
// One more warp waits for lists, so that the warps that pull do not poll remote memory.
template <Pulled kPulled>
constexpr int kStepThreads = 32 * (kPullWarps<kPulled> + 1);

// Values of a block's `listed`: the lists of layers [0, listed) are ready; kStopped: the step must
// end.
constexpr uint32_t kStopped = 0xffffffff;
// A layer's count of finished warps is replaced by this if it has no lists.
constexpr uint32_t kNoLists = 0x80000000;

// Called by one thread. Returns false after the deadline of this wait or another one's.
__device__ bool Await(const PullStep& pull, uint32_t* flag, uint32_t number, int32_t layer,
                      bool for_list) {
  const volatile uint32_t* seen = flag;
  const uint64_t begin = Nanoseconds();
  uint32_t value;
  while ((value = *seen) != number) {
    if (*const_cast<const volatile uint32_t*>(pull.stopped) == number) return false;
    if (Nanoseconds() - begin > pull.deadline_ns) {
      if (atomicExch(pull.stopped, number) != number) {
        PullFault& report = *pull.fault;
        report.layer = static_cast<uint64_t>(layer);
        report.for_list = for_list;
        report.seen = value;
        report.number = number;
        RaiseFlag(&report.set, 1);
      }
      return false;
    }
    __nanosleep(kPollNanoseconds);
  }
  __threadfence();  // before the data that the flag announces is read
  return true;
}

template <Pulled kPulled>
__global__ void __launch_bounds__(kStepThreads<kPulled>, 1)
    PullStepKernel(const __grid_constant__ StepView step,
                   const __grid_constant__ LiteCacheShape shape,
                   const __grid_constant__ RowTable store, const __grid_constant__ RowTable slots,
                   const __grid_constant__ CodeSlots codes, const __grid_constant__ PullStep pull,
                   int32_t first_layer) {
  extern __shared__ uint32_t finished[];  // [pull.count]: number of warps
  __shared__ uint32_t listed;             // layers before this one have their lists; or kStopped
  __shared__ PieceRows rows[kPullWarps<kPulled>];
  const auto thread = static_cast<int32_t>(threadIdx.x), lane = thread % 32;
  for (int32_t i = thread; i < pull.count; i += kStepThreads<kPulled>) finished[i] = 0;
  if (thread == 0) listed = 0;
  __syncthreads();
  const uint32_t number = *pull.number;
  const int32_t warp = thread / 32;
  if (warp == kPullWarps<kPulled>) {
    if (lane > 0) return;
    for (int32_t i = first_layer; i < pull.count; ++i) {
      if (pull.layers[i].list_in_store == nullptr) continue;
      uint32_t* flags = pull.listed + int64_t{i} * kLayerFlags;
      if (!Await(pull, flags, number, i, /*for_list=*/true)) {
        atomicExch(&listed, kStopped);
        return;
      }
      if (__ldcg(flags + 1) == number) atomicExch(finished + i, kNoLists);
      __threadfence_block();
      atomicExch(&listed, static_cast<uint32_t>(i) + 1);
    }
    return;
  }
  // Warp w of block b is the (w * blocks + b)-th, which spreads small lists over the SMs.
  const auto blocks = static_cast<int32_t>(gridDim.x), block = static_cast<int32_t>(blockIdx.x);
  const int32_t warps = blocks * kPullWarps<kPulled>;
  int32_t first = warp * blocks + block;
  for (int32_t i = first_layer; i < pull.count; ++i) {
    const PulledLayer layer = pull.layers[i];
    if (layer.list_in_store == nullptr) continue;
    uint32_t seen = 0;
    if (lane == 0) {
      while ((seen = atomicAdd(&listed, 0u)) <= static_cast<uint32_t>(i)) {
        __nanosleep(kPollNanoseconds);
      }
      __threadfence_block();
    }
    seen = __shfl_sync(kFullMask, seen, 0);
    if (seen == kStopped) return;
    const uint32_t before = lane == 0 ? atomicAdd(finished + i, 0u) : 0;
    if (__shfl_sync(kFullMask, before, 0) == kNoLists) continue;
    PullLayer<kPulled>(step, shape, store, slots, codes, layer, warps, &first, rows[warp]);
    // The warp continues with the next layer without waiting for the other warps' last rows.
    __syncwarp();
    if (lane > 0) continue;
    __threadfence();
    if (atomicAdd(finished + i, 1u) != kPullWarps<kPulled> - 1) continue;
    __threadfence();
    *const_cast<volatile uint32_t*>(pull.arrived + int64_t{i} * kLayerFlags + block) = number;
  }
}

__global__ void TellListedKernel(const __grid_constant__ PullStep pull, int32_t layer, bool none) {
  WaitForKernelBefore();
  LetNextKernelStart();
  const uint32_t number = *pull.number;
  uint32_t* flags = pull.listed + int64_t{layer} * kLayerFlags;
  if (none) flags[1] = number;
  __threadfence();
  *const_cast<volatile uint32_t*>(flags) = number;
}

// One warp, with one lane for each block that pulls. The next kernel must not start before it has
// ended: blocks of an attention waiting on all SMs would keep the kernels that select rows from
// running.
__global__ void AwaitArrivalKernel(const __grid_constant__ PullStep pull, int32_t layer) {
  const auto lane = static_cast<int32_t>(threadIdx.x);
  if (lane < pull.blocks) {
    Await(pull, pull.arrived + int64_t{layer} * kLayerFlags + lane, *pull.number, layer,
          /*for_list=*/false);
  }
  WaitForKernelBefore();
}

}  // namespace

PulledLayer PulledOf(const LiteCacheLayer& layer) {
  return {.list_in_store = layer.store.list_of_head,
          .list_in_slots = layer.slots.list_of_head,
          .refresh = layer.refresh,
          .moved_count = layer.moved_count,
          .moved_positions = layer.moved_positions,
          .moved_slots = layer.moved_slots};
}

int32_t PullStepBlocks(const Stream& stream) {
  return std::min(static_cast<const CudaStream&>(stream).sm_count(), kLayerFlags);
}

void PullStepRows(Stream& stream, const StepView& step, const LiteCacheShape& shape,
                  const LiteCacheLayer& any, const PullStep& pull, int64_t first) {
  LC_CHECK(first >= 0 && first < pull.count && pull.blocks >= 1, "layer {} of {}, {} blocks", first,
           pull.count, pull.blocks);
  ForPulled(any, [&]<Pulled kPulled>() {
    PullStepKernel<kPulled>
        <<<static_cast<unsigned>(pull.blocks), kStepThreads<kPulled>,
           static_cast<size_t>(pull.count) * sizeof(uint32_t), AsCuda(stream).handle()>>>(
            step, shape, any.store, any.slots, any.codes, pull, static_cast<int32_t>(first));
  });
  LC_CUDA_LAUNCHED();
}

void TellListed(Stream& stream, const PullStep& pull, int64_t layer, bool none) {
  LaunchOverlapping(AsCuda(stream), TellListedKernel, 1, 1, 0, pull, static_cast<int32_t>(layer),
                    none);
}

void AwaitArrival(Stream& stream, const PullStep& pull, int64_t layer) {
  LaunchOverlapping(AsCuda(stream), AwaitArrivalKernel, 1, 32, 0, pull,
                    static_cast<int32_t>(layer));
}

}  // namespace litecache::ops::cuda
