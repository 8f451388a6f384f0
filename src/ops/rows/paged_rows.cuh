// Addresses of rows, for kernels: pages of a step's sequences, and divisions by numbers that are
// only known at run time.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/step/step_cuda.h"

namespace litecache::ops::cuda {

// Quotients by a constant of the launch: the number of slots in a page is no power of two, and a
// division for every row would cost more than loading it.
struct Divider {
  uint32_t divisor = 1, multiplier = 1, shift = 0;

  Divider() = default;
  explicit Divider(int32_t value) : divisor(static_cast<uint32_t>(value)) {
    while ((uint64_t{1} << shift) < divisor) ++shift;
    multiplier = static_cast<uint32_t>(
        ((uint64_t{1} << 32) * ((uint64_t{1} << shift) - divisor)) / divisor + 1);
  }
#ifdef __CUDACC__
  // 0 <= n < 2^31.
  __device__ int32_t Quotient(int32_t n) const {
    const auto u = static_cast<uint32_t>(n);
    return static_cast<int32_t>((__umulhi(multiplier, u) + u) >> shift);
  }
#endif
};

// One list of a table of a sequence.
struct RowList {
  std::byte* const* pages = nullptr;  // starting with block 0's
  int32_t lists = 0;                  // distance between the pages of consecutive blocks
  int32_t page_rows = 0;
  int32_t row_bytes = 0;
  Divider per_page;
  // The pages of scales if they are kept apart; otherwise null.
  std::byte* const* scale_pages = nullptr;
  int32_t scales_page_rows = 0;
  Divider per_scales_page;

#ifdef __CUDACC__
  __device__ std::byte* Row(int32_t row) const {
    const int32_t block = per_page.Quotient(row);
    return pages[static_cast<int64_t>(block) * lists] +
           static_cast<int64_t>(row - block * page_rows) * row_bytes;
  }
  // [K, V]; null if they are in the row.
  __device__ float* Scales(int32_t row) const {
    if (scale_pages == nullptr) return nullptr;
    const int32_t block = per_scales_page.Quotient(row);
    return reinterpret_cast<float*>(scale_pages[static_cast<int64_t>(block) * lists]) +
           2 * (row - block * scales_page_rows);
  }
#endif
};

// What kernels over a table need besides the step: passed by value.
struct TableAccess {
  RowTable table;
  int32_t row_bytes = 0;
  Divider per_page, per_ring, per_scales_page;

  TableAccess() = default;
  explicit TableAccess(const RowTable& rows)
      : table(rows),
        row_bytes(static_cast<int32_t>(rows.format.row_bytes())),
        per_page(rows.page_rows > 0 ? rows.page_rows : 1),
        per_ring(rows.ring > 0 ? rows.ring : 1),
        per_scales_page(rows.scales_page_rows > 0 ? rows.scales_page_rows : 1) {}

#ifdef __CUDACC__
  __device__ RowList List(const StepSequence& sequence, int32_t list) const {
    RowList rows;
    rows.pages = sequence.pages[table.table] + list;
    rows.lists = table.lists;
    rows.page_rows = table.page_rows;
    rows.row_bytes = row_bytes;
    rows.per_page = per_page;
    if (table.format.scales_apart) {
      rows.scale_pages = sequence.pages[kScales] + list;
      rows.scales_page_rows = table.scales_page_rows;
      rows.per_scales_page = per_scales_page;
    }
    return rows;
  }
  // The row index of a token.
  __device__ int32_t RowOf(int32_t token) const {
    if (table.ring == 0 || token < table.sink) return token;
    return table.sink + token - per_ring.Quotient(token) * table.ring;
  }
#endif
};

#ifdef __CUDACC__
// The sequence whose new tokens include row `row` of the activations, -1 if there is none. Called
// by whole warps.
__device__ inline int32_t SequenceOfRow(const StepView& step, int32_t row) {
  const int32_t count = *step.count;
  const int32_t lane = threadIdx.x % 32;
  for (int32_t begin = 0; begin < count; begin += 32) {
    bool holds = false;
    if (begin + lane < count) {
      // Both in one load: different lanes read different sequences.
      static_assert(offsetof(StepSequence, rows) == offsetof(StepSequence, first_row) + 4 &&
                    offsetof(StepSequence, first_row) % 8 == 0 && alignof(StepSequence) == 8);
      const int2 own = *reinterpret_cast<const int2*>(&step.sequences[begin + lane].first_row);
      holds = row >= own.x && row < own.x + own.y;
    }
    const unsigned found = __ballot_sync(0xffffffffu, holds);
    if (found != 0) return begin + __ffs(static_cast<int>(found)) - 1;
  }
  return -1;
}
#endif

}  // namespace litecache::ops::cuda
