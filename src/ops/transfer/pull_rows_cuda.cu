// Reads rows from the store into slots.
#include <algorithm>

#include "device/cuda/check.h"
#include "device/cuda/cuda_device.h"
#include "ops/common/overlap.cuh"
#include "ops/slots/litecache_layer_cuda.h"
#include "ops/slots/litecache_pair.cuh"
#include "ops/transfer/move_rows.cuh"
#include "ops/transfer/pull_layer.cuh"
#include "ops/transfer/pull_rows_cuda.h"

namespace litecache::ops::cuda {
namespace {

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / 32;

// Small blocks: one fits on an SM beside a block of a product or of an attention, which then need
// not give up the SM (an attention takes 55,296 of 65,536 registers).
constexpr int kPullThreads = 128;
constexpr int kPullWarps = kPullThreads / 32;
// Blocks that an SM must have room for.
constexpr int BlocksAnSm(Pulled pulled) {
  if (pulled == Pulled::kOther) return 4;
  if (pulled == Pulled::kCodes) return 6;
  return pulled == Pulled::kPlain ? 10 : 5;
}

template <Pulled kPulled>
__global__ void __launch_bounds__(kPullThreads, BlocksAnSm(kPulled))
    PullRowsKernel(const __grid_constant__ StepView step,
                   const __grid_constant__ LiteCacheShape shape,
                   const __grid_constant__ RowTable store, const __grid_constant__ RowTable slots,
                   const __grid_constant__ CodeSlots codes,
                   const __grid_constant__ PulledLayer layer) {
  WaitForKernelBefore();
  __shared__ PieceRows rows[kPullWarps];
  const auto warp = static_cast<int32_t>(threadIdx.x) / 32;
  // Warp w of block b is the (w * blocks + b)-th, which spreads small lists over the blocks.
  int32_t first = warp * static_cast<int32_t>(gridDim.x) + static_cast<int32_t>(blockIdx.x);
  PullLayer<kPulled>(step, shape, store, slots, codes, layer,
                     static_cast<int32_t>(gridDim.x) * kPullWarps, &first, rows[warp]);
}

// One block per pair.
__global__ void __launch_bounds__(kThreads, 1)
    FillFixedKernel(const __grid_constant__ StepView step,
                    const __grid_constant__ LiteCacheShape shape,
                    const __grid_constant__ LiteCacheLayer layer, const int32_t* fill) {
  const int32_t head = blockIdx.x, sequence = blockIdx.y;
  if (sequence >= *step.count || fill[sequence] == 0) return;
  const int32_t list = layer.slots.list_of_head[head];
  if (list < 0) return;
  const StepSequence& s = step.sequences[sequence];
  const int32_t stored_list = layer.store.list_of_head[head];
  // Rows that are not stored yet are in their slots.
  const int32_t sink = max(0, min(shape.windows.SinkRows(s.past), s.stored));
  const int32_t recent = shape.windows.RecentBegin(s.past);
  const int32_t count = sink + max(0, s.stored - recent);
  const auto token = [&](int32_t i) { return i < sink ? i : recent + i - sink; };
  for (int32_t row = threadIdx.x / 32; row < count; row += kWarps) {
    MoveSome(
        1, layer.store.format, layer.slots.format,
        [&](int32_t) { return RowOf(s, layer.store, stored_list, token(row)); },
        [&](int32_t) {
          const bool apart = layer.store.format.scales_apart;
          return apart ? __ldcg(ScalesOf(s, layer.store, stored_list, token(row))) : float2{};
        },
        [&](int32_t) { return RowOf(s, layer.slots, list, shape.windows.FixedSlot(token(row))); });
  }
}

// Blocks that an SM has room for.
template <Pulled kPulled>
int MostAtOnce() {
  static const int most = [] {
    int blocks = 0;
    LC_CUDA(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, PullRowsKernel<kPulled>,
                                                          kPullThreads, 0));
    return std::max(blocks, 1);
  }();
  return most;
}

}  // namespace

void PullRows(Stream& stream, const StepView& step, const LiteCacheShape& shape,
              const LiteCacheLayer& layer, int32_t blocks) {
  LC_CHECK(blocks >= 1, "{} blocks", blocks);
  ForPulled(layer, [&]<Pulled kPulled>() {
    // Blocks that find no room would only begin when others have ended.
    const int most = MostAtOnce<kPulled>() * AsCuda(stream).sm_count();
    LaunchOverlapping(AsCuda(stream), PullRowsKernel<kPulled>,
                      static_cast<unsigned>(std::min(blocks, most)), kPullThreads, 0, step, shape,
                      layer.store, layer.slots, layer.codes, PulledOf(layer));
  });
}

void FillFixed(Stream& stream, const StepView& step, const LiteCacheShape& shape,
               const LiteCacheLayer& layer, const int32_t* fill) {
  CheckMove(layer.store.format, layer.slots.format);
  const dim3 grid(static_cast<unsigned>(shape.kv_heads), static_cast<unsigned>(step.capacity));
  FillFixedKernel<<<grid, kThreads, 0, AsCuda(stream).handle()>>>(step, shape, layer, fill);
  LC_CUDA_LAUNCHED();
}

}  // namespace litecache::ops::cuda
