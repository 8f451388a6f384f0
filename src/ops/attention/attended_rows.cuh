// Which rows a KV head of a sequence attends in a decode step: for kernels, the counterpart of
// DecodePath::Attend (kv/litecache/decode_cpu.cc); attending all rows of a table is a special case.
#pragma once

#include "ops/attention/attention_cuda.h"
#include "ops/rows/paged_rows.cuh"
#include "ops/slots/code_slots.h"

namespace litecache::ops::cuda {

#ifdef __CUDACC__
// The attended rows 0 .. total - 1 of a head, in three parts: beginning, middle (selected), end.
struct AttendedRows {
  RowList list;
  int32_t total = 0;
  int32_t first = 0;   // number of rows of the beginning: rows [0, first) of the list
  int32_t middle = 0;  // number of rows of the middle part
  // The middle: positions (selected), or cached slots from cache_begin on whose update is `update`.
  const int32_t* selected = nullptr;
  bool cached = false;
  int32_t cache_begin = 0;
  uint32_t update = 0;
  // The end: tokens from end_begin on, in a ring of slots if ring > 0.
  int32_t end_begin = 0;
  int32_t sink = 0, ring = 0;
  Divider per_ring;
  // If cached slots are codes: their first page, and the slots in a page.
  std::byte* const* code_pages = nullptr;
  int32_t code_slots = 0;
  Divider per_code_page;

  // Where a row is. A row with a stamp is attended only if the stamp equals `wanted`.
  struct Place {
    const std::byte* row = nullptr;
    const uint32_t* stamp = nullptr;
    uint32_t wanted = 0;
  };

  // Row i < total as an index into the list; not for cached slots.
  __device__ int32_t InList(int32_t i) const {
    if (i < first) return i;
    i -= first;
    if (i < middle) return selected[i];
    const int32_t row = end_begin + i - middle;
    return ring > 0 && row >= sink ? sink + row - per_ring.Quotient(row) * ring : row;
  }

  // The place of row i < total; not for cached slots that are codes.
  __device__ Place At(int32_t i) const {
    if (!cached || i < first || i >= first + middle) return {list.Row(InList(i))};
    int32_t row = cache_begin + i - first;
    const int32_t block = list.per_page.Quotient(row);
    const std::byte* page = list.pages[static_cast<int64_t>(block) * list.lists];
    row -= block * list.page_rows;
    const auto* arrays = reinterpret_cast<const uint32_t*>(
        page + static_cast<int64_t>(list.page_rows) * list.row_bytes);
    return {page + static_cast<int64_t>(row) * list.row_bytes, arrays + list.page_rows + row,
            update};
  }

  // The row's address; null if it is not attended.
  __device__ const std::byte* Row(int32_t i) const {
    const Place place = At(i);
    return place.stamp == nullptr || *place.stamp == place.wanted ? place.row : nullptr;
  }
};
#endif

// The operands of a decode attention, passed by value. Without slots, every head in `resident`
// attends all rows.
struct AttendedTables {
  StepView step;
  HybridTables tables;
  TableAccess slots, resident;
  Divider per_code_page;  // of tables.codes
  bool hybrid = false;
  // Attend rows [0, leading) of `resident`, then the selected ones.
  bool listed = false;
  const int32_t* leading = nullptr;  // [pairs]; null: none
  SlotWindows<int32_t> windows;      // hybrid
  int32_t kv_heads = 0;

#ifdef __CUDACC__
  // The rows attended over the first `n` tokens of sequence `index`; total is 0 if no table has the
  // head.
  __device__ AttendedRows Of(int32_t index, int32_t head, int32_t n) const {
    const StepSequence& sequence = step.sequences[index];
    AttendedRows rows;
    if (listed) {
      const int32_t list = tables.resident.list_of_head[head];
      if (list < 0) return rows;
      const int64_t pair = static_cast<int64_t>(index) * kv_heads + head;
      rows.list = resident.List(sequence, list);
      if (leading != nullptr) rows.first = leading[pair];
      if (tables.selected_count != nullptr) rows.middle = tables.selected_count[pair];
      rows.selected = tables.selected + pair * tables.max_selected;
      rows.total = rows.first + rows.middle;
      return rows;
    }
    if (hybrid) {
      const int32_t slot_list = tables.slots.lists > 0 ? tables.slots.list_of_head[head] : -1;
      const int32_t sink = windows.SinkRows(n);
      if (slot_list >= 0) {
        if (tables.refresh != nullptr &&
            (tables.refresh[int64_t{index} * kv_heads + head] == 1) != tables.refreshed) {
          return rows;
        }
        const HeadState& state = sequence.heads[slot_list];
        rows.list = slots.List(sequence, slot_list);
        rows.first = sink;
        rows.middle = state.used;
        rows.cached = true;
        rows.cache_begin = tables.cache_begin;
        rows.update = state.update;
        rows.end_begin = windows.WindowBegin(n, state.window_begin);
        rows.sink = tables.slots.sink;
        rows.ring = tables.slots.ring;
        rows.per_ring = slots.per_ring;
        if (tables.codes.page_slots > 0) {
          rows.code_pages =
              rows.list.pages + static_cast<int64_t>(tables.codes.first_page) * tables.slots.lists;
          rows.code_slots = tables.codes.page_slots;
          rows.per_code_page = per_code_page;
        }
        const int32_t end = n > rows.end_begin ? n - rows.end_begin : 0;
        rows.total = sink + state.used + end;
        return rows;
      }
      const int32_t list = tables.resident.lists > 0 ? tables.resident.list_of_head[head] : -1;
      if (list < 0 || tables.refreshed) return rows;
      rows.list = resident.List(sequence, list);
      const int32_t recent = windows.RecentBegin(n);
      const bool dense = tables.dense != nullptr && tables.dense[head] != 0;
      if (dense || tables.selected == nullptr || windows.AllFit(n)) {
        rows.first = rows.total = n;
        return rows;
      }
      const int64_t pair = static_cast<int64_t>(index) * kv_heads + head;
      rows.first = sink;
      rows.middle = tables.selected_count[pair];
      rows.selected = tables.selected + pair * tables.max_selected;
      rows.end_begin = recent;
      rows.total = sink + rows.middle + n - recent;
      return rows;
    }
    const int32_t list = tables.resident.list_of_head[head];
    if (list < 0) return rows;
    rows.list = resident.List(sequence, list);
    rows.first = rows.total = n;
    return rows;
  }
#endif
};

}  // namespace litecache::ops::cuda
