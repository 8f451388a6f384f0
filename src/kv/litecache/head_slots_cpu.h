// Which rows an offloaded head of a sequence has in its slots, and how they change on a miss.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "device/device.h"
#include "kv/pages/page_pool.h"
#include "kv/step/attended_rows_cpu.h"
#include "ops/common/row_format.h"

namespace litecache::kv {

// Slots in a page. A page holds the rows first, then three int32 per slot: the token position, the
// update that last selected the slot, and the page's list of attended slots.
int64_t SlotsIn(uint64_t page_bytes, const ops::RowFormat& format);

// The slots of one (sequence, layer, KV head); pages belong to the sequence's SlotTable. Cached
// rows are in slots [begin, begin + used). Those that the last update selected are attended; the
// others, if there are more slots than k, are kept in case they are selected again.
struct HeadSlots {
  std::vector<PageId> ids;
  std::vector<std::byte*> pages;
  int64_t used = 0;
  // If there are more slots than rows, the first slot to be replaced that is not selected again:
  // slots are replaced in turn. Replacing those selected longest ago moves a sixth fewer rows
  // (0.93 instead of 1.10 MiB a token, SmolLM2 with budget = auto), but finding them takes a GPU a
  // search through all slots.
  int64_t next_victim = 0;
  uint32_t update = 0;       // number of the last update
  int64_t window_begin = 0;  // where the recent window began at the last update
  // Cached rows are of earlier tokens than this one. After tokens were taken back the window begins
  // earlier, while rows that are not selected keep their slots.
  int64_t cached_end = 0;
  // A lookup missed and its rows have not been transferred: the label is ahead of the rows.
  bool pending = false;
  std::vector<int32_t> attended;  // [pages]: attended slots in each page
};

// Geometry that all heads share.
struct SlotGeometry {
  ops::RowFormat format;
  int64_t page_slots = 0;
  int64_t begin = 0;  // the first slot of cached rows

  ops::SlotRows Rows(const HeadSlots& slots) const {
    return {slots.pages.data(), page_slots, format};
  }
  // Arrays of a page's slots.
  int32_t* Positions(const HeadSlots& slots, int64_t page) const { return Array(slots, page, 0); }
  uint32_t* Updates(const HeadSlots& slots, int64_t page) const {
    return reinterpret_cast<uint32_t*>(Array(slots, page, 1));
  }
  int32_t& Position(const HeadSlots& slots, int64_t slot) const {
    return Positions(slots, slot / page_slots)[slot % page_slots];
  }
  // Absolute slot numbers, slots.attended[page] of them, ascending.
  int32_t* Attended(const HeadSlots& slots, int64_t page) const { return Array(slots, page, 2); }

 private:
  int32_t* Array(const HeadSlots& slots, int64_t page, int64_t array) const {
    return reinterpret_cast<int32_t*>(slots.pages[static_cast<size_t>(page)] +
                                      static_cast<size_t>(page_slots) * format.row_bytes()) +
           array * page_slots;
  }
};

// Drops the cached rows.
void ClearSlots(HeadSlots* slots);

// Notes that the recent window begins at `begin` at an update of the cached rows.
inline void SetWindow(int64_t begin, HeadSlots* slots) {
  slots->window_begin = begin;
  slots->cached_end = std::max(slots->cached_end, begin);
}

// Appends the row of token `position` to the cached ones, attended; if it already is the last one
// (a step that is run again) nothing changes. Returns its slot.
int64_t AppendSlot(const SlotGeometry& geometry, int64_t index, int64_t position, HeadSlots* slots);

// A head whose cached rows shall become those of `positions` (ascending).
struct UpdateWork {
  HeadSlots* slots = nullptr;
  const int32_t* positions = nullptr;
  int64_t count = 0;
  int64_t capacity = 0;  // slots for cached rows, >= count
  // Results, with room for `count`: rows to transfer, and their target slots.
  int32_t* moved_positions = nullptr;
  int32_t* moved_slots = nullptr;
  int64_t moved = 0;
};

// delta: rows that have a slot keep it; the others take free slots, then the slots of rows that
// are not selected, from `next_victim` on. Without delta every row gets a new slot and is
// transferred. Both give the same set of attended rows.
void UpdateSlots(Stream& stream, const SlotGeometry& geometry, bool delta,
                 std::span<UpdateWork> work);

// Positions of the attended cached rows, in slot order.
void AttendedPositions(const SlotGeometry& geometry, const HeadSlots& slots,
                       std::vector<int32_t>* positions);

// Adds the attended cached rows to `rows`.
void AddAttended(const SlotGeometry& geometry, const HeadSlots& slots, AttendedRows* rows);

}  // namespace litecache::kv
