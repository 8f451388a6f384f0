// Which rows an offloaded head of a sequence has in its slots, and how that changes on a miss.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "device/device.h"
#include "kv/pages/page_pool.h"
#include "kv/step/attended_rows_cpu.h"
#include "ops/common/row_format.h"

namespace litecache::kv {

// Slots a page holds: rows first, then for each slot its token position, the update that last
// selected it, and the page's list of attended slots (three int32 a slot).
int64_t SlotsIn(uint64_t page_bytes, const ops::RowFormat& format);

// The slots of one (sequence, layer, KV head); pages belong to the sequence's SlotTable. Cached
// rows lie in slots [begin, begin + used); those that the last update selected are attended, the
// others (more slots than k) only wait to be selected again.
struct HeadSlots {
  std::vector<PageId> ids;
  std::vector<std::byte*> pages;
  int64_t used = 0;
  uint32_t update = 0;            // number of the last update
  int64_t window_begin = 0;       // where the recent window began at the last update
  bool pending = false;           // a lookup missed, its rows have not arrived: the label is ahead
  std::vector<int32_t> attended;  // attended slots a page
};

// Geometry that all heads share.
struct SlotGeometry {
  ops::RowFormat format;
  int64_t page_slots = 0;
  int64_t begin = 0;  // first slot of cached rows

  ops::SlotRows Rows(const HeadSlots& slots) const {
    return {slots.pages.data(), page_slots, format};
  }
  // Of a page's slots.
  int32_t* Positions(const HeadSlots& slots, int64_t page) const { return Array(slots, page, 0); }
  uint32_t* Updates(const HeadSlots& slots, int64_t page) const {
    return reinterpret_cast<uint32_t*>(Array(slots, page, 1));
  }
  int32_t& Position(const HeadSlots& slots, int64_t slot) const {
    return Positions(slots, slot / page_slots)[slot % page_slots];
  }
  // Absolute slots, slots.attended[page] of them, ascending.
  int32_t* Attended(const HeadSlots& slots, int64_t page) const { return Array(slots, page, 2); }

 private:
  int32_t* Array(const HeadSlots& slots, int64_t page, int64_t array) const {
    return reinterpret_cast<int32_t*>(slots.pages[static_cast<size_t>(page)] +
                                      static_cast<size_t>(page_slots) * format.row_bytes()) +
           array * page_slots;
  }
};

// Forgets the cached rows.
void ClearSlots(HeadSlots* slots);

// Appends the row of token `position` as the next cached one, attended; where it is the last one
// already (a step that is run again) nothing changes. Returns its slot.
int64_t AppendSlot(const SlotGeometry& geometry, int64_t index, int64_t position, HeadSlots* slots);

// One head whose rows become those of `positions` (ascending).
struct UpdateWork {
  HeadSlots* slots = nullptr;
  const int32_t* positions = nullptr;
  int64_t count = 0;
  int64_t capacity = 0;  // slots for cached rows, >= count; never falls from one update to the next
  // Results, room for count: rows that have to travel, and the slots they go to.
  int32_t* moved_positions = nullptr;
  int32_t* moved_slots = nullptr;
  int64_t moved = 0;
};

// delta: rows that have a slot keep it; the others take free slots, then those of the rows that
// were selected longest ago. Otherwise every row takes a slot and travels. The set of attended rows
// is the same.
void UpdateSlots(Stream& stream, const SlotGeometry& geometry, bool delta,
                 std::span<UpdateWork> work);

// Positions of the attended cached rows, in the order of their slots.
void AttendedPositions(const SlotGeometry& geometry, const HeadSlots& slots,
                       std::vector<int32_t>* positions);

// The attended cached rows, to what is attended.
void AddAttended(const SlotGeometry& geometry, const HeadSlots& slots, AttendedRows* rows);

}  // namespace litecache::kv
