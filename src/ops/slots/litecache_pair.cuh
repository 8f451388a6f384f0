// Addresses of the parts of a (sequence, KV head) pair in device memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/slots/code_slots.h"
#include "ops/slots/litecache_layer_cuda.h"
#include "ops/step/step_cuda.h"

namespace litecache::ops::cuda {

constexpr unsigned kFullMask = 0xffffffffu;

__device__ __forceinline__ bool IsQuantized(RowEncoding encoding) {
  return encoding >= RowEncoding::kFp8;
}

// RowFormat::row_bytes().
__device__ __forceinline__ size_t RowBytes(const RowFormat& format) {
  const auto d = static_cast<size_t>(format.head_dim);
  if (format.encoding == RowEncoding::kInt4) {
    return 2 * ((d + 1) / 2 + 4 * ((d + kInt4Group - 1) / kInt4Group));
  }
  if (IsQuantized(format.encoding)) return 2 * d + (format.scales_apart ? 0 : 16);
  return 2 * d * (format.encoding == RowEncoding::kBF16 ? 2 : 4);
}

__device__ __forceinline__ std::byte* PageOf(const StepSequence& s, const RowTable& table,
                                             int32_t list, int32_t block) {
  return s.pages[table.table][int64_t{block} * table.lists + list];
}

// Row `row` of a list: a token of the store or of resident rows, or a slot.
__device__ __forceinline__ std::byte* RowOf(const StepSequence& s, const RowTable& table,
                                            int32_t list, int32_t row) {
  const int32_t block = row / table.page_rows;
  return PageOf(s, table, list, block) +
         static_cast<size_t>(row - block * table.page_rows) * RowBytes(table.format);
}

// Scales of a row whose format keeps them apart.
__device__ __forceinline__ float2* ScalesOf(const StepSequence& s, const RowTable& table,
                                            int32_t list, int32_t row) {
  const int32_t block = row / table.scales_page_rows;
  return reinterpret_cast<float2*>(s.pages[kScales][int64_t{block} * table.lists + list]) +
         (row - block * table.scales_page_rows);
}

// The location of cached slot `slot`, whose row is codes.
struct CodePlace {
  CodePage page;
  int32_t in_page;
};
__device__ __forceinline__ CodePlace CodesOf(const StepSequence& s, const RowTable& slots,
                                             const CodeSlots& codes, int32_t list, int32_t slot) {
  const int32_t i = slot - codes.begin, block = i / codes.page_slots;
  return {{PageOf(s, slots, list, codes.first_page + block), codes.page_slots,
           2 * static_cast<int32_t>(slots.format.head_dim)},
          i - block * codes.page_slots};
}

// A cached slot's entries behind its page's rows: positions, then the updates that last selected
// the slots.
struct SlotEntry {
  int32_t* position;
  uint32_t* update;
};
__device__ __forceinline__ SlotEntry SlotOf(const StepSequence& s, const LiteCacheLayer& layer,
                                            int32_t list, int32_t slot) {
  const RowTable& slots = layer.slots;
  if (layer.codes.page_slots > 0) {
    const auto [page, in_page] = CodesOf(s, slots, layer.codes, list, slot);
    return {page.Positions() + in_page, page.Updates() + in_page};
  }
  const int32_t block = slot / slots.page_rows;
  auto* positions =
      reinterpret_cast<int32_t*>(PageOf(s, slots, list, block) +
                                 static_cast<size_t>(slots.page_rows) * RowBytes(slots.format));
  const int32_t in_page = slot - block * slots.page_rows;
  return {positions + in_page, reinterpret_cast<uint32_t*>(positions + slots.page_rows) + in_page};
}

// The label [group][head_dim] of an offloaded list.
__device__ __forceinline__ float* LabelOf(const StepSequence& s, const LiteCacheShape& shape,
                                          int32_t list) {
  const int32_t page = list / shape.labels_a_page;
  return reinterpret_cast<float*>(s.pages[kLabels][page]) +
         int64_t{list - page * shape.labels_a_page} * shape.group * shape.head_dim;
}

__device__ __forceinline__ float WarpSum(float x) {
  for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(kFullMask, x, offset);
  return x;
}

__device__ __forceinline__ float WarpMax(float x) {
  for (int offset = 16; offset > 0; offset /= 2) {
    x = fmaxf(x, __shfl_xor_sync(kFullMask, x, offset));
  }
  return x;
}

__device__ __forceinline__ double WarpSum(double x) {
  for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(kFullMask, x, offset);
  return x;
}

// The sum over the preceding lanes; total: over all.
__device__ __forceinline__ int32_t WarpExclusiveSum(int32_t x, int32_t* total) {
  const int lane = threadIdx.x % 32;
  int32_t sum = x;
  for (int offset = 1; offset < 32; offset *= 2) {
    const int32_t below = __shfl_up_sync(kFullMask, sum, offset);
    if (lane >= offset) sum += below;
  }
  *total = __shfl_sync(kFullMask, sum, 31);
  return sum - x;
}

// The sum over the preceding threads in a block of kWarps warps; total: over all. warp_sums
// [kWarps], shared; must differ from the previous call's, which others may still read.
template <int kWarps>
__device__ __forceinline__ int32_t SumBefore(int32_t x, int32_t* warp_sums, int32_t* total) {
  int32_t of_warp;
  const int32_t in_warp = WarpExclusiveSum(x, &of_warp);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  if (threadIdx.x % 32 == 0) warp_sums[warp] = of_warp;
  __syncthreads();
  int32_t before = 0, all = 0;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) {
    const int32_t sum = warp_sums[w];
    before += w < warp ? sum : 0;
    all += sum;
  }
  *total = all;
  return before + in_warp;
}

}  // namespace litecache::ops::cuda
