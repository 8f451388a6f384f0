#include "kv/litecache/head_slots_cpu.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "device/cpu/cpu_device.h"

namespace litecache::kv {
namespace {

constexpr int64_t kArrays = 3;  // position, update, attended

// Calls body(page, first slot within it, count, index of the first) for the pages that hold cached
// slots [0, count), counted from the first cached one. Page by page, because the number of slots in
// a page is no power of two: a division per slot took longer than the rest of an update.
template <class Body>
void ForEachPage(const SlotGeometry& g, int64_t count, const Body& body) {
  for (int64_t index = 0; index < count;) {
    const int64_t slot = g.begin + index;
    const int64_t first = slot % g.page_slots;
    const int64_t run = std::min(count - index, g.page_slots - first);
    body(slot / g.page_slots, first, run, index);
    index += run;
  }
}

// Scratch of an update, kept between calls; indices count cached slots.
struct Workspace {
  std::vector<int32_t> index_of;   // for every position, -1 if it has no slot
  std::vector<int32_t> positions;  // [used]
  std::vector<uint32_t> updates;   // [used]
  std::vector<int32_t> victims;    // slots that are not selected again
};

// Rebuilds the attended lists from the slots that the last update selected, and sets all slots'
// update numbers to `updates`.
void ListAttended(const SlotGeometry& g, const std::vector<uint32_t>& updates, HeadSlots* slots) {
  slots->attended.assign(slots->pages.size(), 0);
  const uint32_t now = slots->update;
  ForEachPage(g, slots->used, [&](int64_t page, int64_t first, int64_t count, int64_t index) {
    uint32_t* target = g.Updates(*slots, page) + first;
    const uint32_t* source = updates.data() + index;
    int32_t* list = g.Attended(*slots, page);
    const auto slot = static_cast<int32_t>(g.begin + index);
    int32_t listed = 0;
    for (int64_t i = 0; i < count; ++i) {
      target[i] = source[i];
      list[listed] = slot + static_cast<int32_t>(i);
      listed += source[i] == now;
    }
    slots->attended[static_cast<size_t>(page)] = listed;
  });
}

void Place(const SlotGeometry& g, int64_t index, int32_t position, Workspace* space,
           UpdateWork* work) {
  g.Position(*work->slots, g.begin + index) = position;
  space->updates[static_cast<size_t>(index)] = work->slots->update;
  work->moved_slots[work->moved++] = static_cast<int32_t>(g.begin + index);
}

void ReplaceAll(const SlotGeometry& g, Workspace* space, UpdateWork* work) {
  std::copy_n(work->positions, work->count, work->moved_positions);
  work->slots->used = work->count;
  space->updates.resize(static_cast<size_t>(work->count));
  for (int64_t i = 0; i < work->count; ++i) Place(g, i, work->positions[i], space, work);
}

void ReplaceMissing(const SlotGeometry& g, Workspace* space, UpdateWork* work) {
  HeadSlots& slots = *work->slots;
  const int64_t used = slots.used;
  // The capacity is smaller than before if tokens were taken back: it is a share of the context.
  const int64_t fresh_room = std::max<int64_t>(work->capacity - used, 0);
  space->positions.resize(static_cast<size_t>(used));
  space->updates.resize(static_cast<size_t>(used));
  int32_t highest = work->count > 0 ? work->positions[work->count - 1] : 0;
  ForEachPage(g, used, [&](int64_t page, int64_t first, int64_t count, int64_t index) {
    const int32_t* positions = g.Positions(slots, page) + first;
    std::copy_n(positions, count, space->positions.data() + index);
    std::copy_n(g.Updates(slots, page) + first, count, space->updates.data() + index);
    highest = std::max(highest, *std::max_element(positions, positions + count));
  });
  if (static_cast<size_t>(highest) >= space->index_of.size()) {
    space->index_of.resize(2 * static_cast<size_t>(highest) + 1, -1);
  }
  int32_t* index_of = space->index_of.data();
  for (int64_t i = 0; i < used; ++i) {
    index_of[space->positions[static_cast<size_t>(i)]] = static_cast<int32_t>(i);
  }
  // Branch-free, here and below: which rows stay is unpredictable, and a mispredicted branch costs
  // more than the rest of a row's work. A missing row writes to the element behind the last slot.
  int64_t missing = 0;
  space->updates.resize(static_cast<size_t>(used) + 1);
  uint32_t* updates = space->updates.data();
  for (int64_t i = 0; i < work->count; ++i) {
    const int32_t position = work->positions[i];
    const int32_t index = index_of[position];
    updates[index >= 0 ? index : used] = slots.update;
    work->moved_positions[missing] = position;
    missing += index < 0;
  }
  for (const int32_t position : space->positions) index_of[position] = -1;

  const int64_t fresh = std::min(missing, fresh_room);
  const int64_t victims = missing - fresh;
  // One element more than slots, which what follows the last free slot is written to.
  space->victims.resize(static_cast<size_t>(used) + 1);
  int32_t* free_slots = space->victims.data();
  int64_t found = 0;
  const auto find = [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      free_slots[found] = static_cast<int32_t>(i);
      found += updates[i] != slots.update;
    }
  };
  if (victims > 0) {
    const int64_t first = slots.next_victim < used ? slots.next_victim : 0;
    find(first, used);
    if (found < victims) find(0, first);
    LC_CHECK(victims <= found, "{} rows, {} slots", work->count, work->capacity);
    slots.next_victim = free_slots[victims - 1] + 1;
  }
  slots.used += fresh;
  space->updates.resize(static_cast<size_t>(slots.used));
  for (int64_t i = 0; i < victims; ++i) {
    Place(g, space->victims[static_cast<size_t>(i)], work->moved_positions[i], space, work);
  }
  for (int64_t i = 0; i < fresh; ++i) {
    Place(g, used + i, work->moved_positions[victims + i], space, work);
  }
}

}  // namespace

int64_t SlotsIn(uint64_t page_bytes, const ops::RowFormat& format) {
  return static_cast<int64_t>(page_bytes / (format.row_bytes() + kArrays * sizeof(int32_t)));
}

void ClearSlots(HeadSlots* slots) {
  slots->used = 0;
  slots->cached_end = 0;
  slots->next_victim = 0;
  slots->pending = false;
  slots->attended.assign(slots->pages.size(), 0);
}

int64_t AppendSlot(const SlotGeometry& g, int64_t index, int64_t position, HeadSlots* slots) {
  const int64_t slot = g.begin + index;
  if (index < slots->used) {
    LC_CHECK(g.Position(*slots, slot) == position);
    return slot;
  }
  LC_CHECK(index == slots->used);
  ++slots->used;
  g.Position(*slots, slot) = static_cast<int32_t>(position);
  g.Updates(*slots, slot / g.page_slots)[slot % g.page_slots] = slots->update;
  slots->attended.resize(slots->pages.size(), 0);
  const int64_t page = slot / g.page_slots;
  g.Attended(*slots, page)[slots->attended[static_cast<size_t>(page)]++] =
      static_cast<int32_t>(slot);
  return slot;
}

void UpdateSlots(Stream& stream, const SlotGeometry& geometry, bool delta,
                 std::span<UpdateWork> work) {
  AsCpu(stream).pool().ParallelFor(
      static_cast<int64_t>(work.size()), 1, [&](int64_t begin, int64_t end, int) {
        static thread_local Workspace space;
        for (int64_t i = begin; i < end; ++i) {
          UpdateWork& item = work[static_cast<size_t>(i)];
          LC_CHECK(item.count <= item.capacity, "{} rows, {} slots", item.count, item.capacity);
          ++item.slots->update;
          item.moved = 0;
          if (delta) {
            ReplaceMissing(geometry, &space, &item);
          } else {
            ReplaceAll(geometry, &space, &item);
          }
          ListAttended(geometry, space.updates, item.slots);
        }
      });
}

void AttendedPositions(const SlotGeometry& g, const HeadSlots& slots,
                       std::vector<int32_t>* positions) {
  for (size_t page = 0; page < slots.attended.size(); ++page) {
    const int32_t* list = g.Attended(slots, static_cast<int64_t>(page));
    for (int32_t i = 0; i < slots.attended[page]; ++i) {
      positions->push_back(g.Position(slots, list[i]));
    }
  }
}

void AddAttended(const SlotGeometry& g, const HeadSlots& slots, AttendedRows* rows) {
  for (size_t page = 0; page < slots.attended.size(); ++page) {
    const int64_t count = slots.attended[page];
    if (count == 0) continue;
    const int32_t* list = g.Attended(slots, static_cast<int64_t>(page));
    const bool run = list[count - 1] - list[0] == count - 1;
    rows->Add(
        {.rows = g.Rows(slots), .indices = run ? nullptr : list, .begin = list[0], .count = count});
  }
}

}  // namespace litecache::kv
