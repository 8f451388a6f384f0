#include "kv/litecache/head_slots.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "device/cpu/cpu_device.h"

namespace litecache::kv {
namespace {

constexpr int64_t kArrays = 3;  // position, update, attended

// Slot of every position that has one; kept between calls, all -1.
struct SlotMap {
  std::vector<int32_t> slots;
  std::vector<std::pair<uint32_t, int32_t>> stale;  // (update, slot)

  int32_t& At(int32_t position) {
    const auto index = static_cast<size_t>(position);
    if (index >= slots.size()) slots.resize(std::max(index + 1, 2 * slots.size()), -1);
    return slots[index];
  }
};

// Makes the attended lists those of the slots that the last update selected.
void ListAttended(const SlotGeometry& g, HeadSlots* slots) {
  slots->attended.assign(slots->pages.size(), 0);
  const int64_t end = g.begin + slots->used;
  for (int64_t slot = g.begin; slot < end;) {
    const int64_t page = slot / g.page_slots;
    const int64_t page_end = std::min(end, (page + 1) * g.page_slots);
    int32_t* list = g.Attended(*slots, page);
    int32_t count = 0;
    for (; slot < page_end; ++slot) {
      if (g.Update(*slots, slot) == slots->update) list[count++] = static_cast<int32_t>(slot);
    }
    slots->attended[static_cast<size_t>(page)] = count;
  }
}

void Place(const SlotGeometry& g, int64_t slot, int32_t position, UpdateWork* work) {
  g.Position(*work->slots, slot) = position;
  g.Update(*work->slots, slot) = work->slots->update;
  work->moved_slots[work->moved++] = static_cast<int32_t>(slot);
}

void ReplaceAll(const SlotGeometry& g, UpdateWork* work) {
  std::copy_n(work->positions, work->count, work->moved_positions);
  for (int64_t i = 0; i < work->count; ++i) Place(g, g.begin + i, work->positions[i], work);
  work->slots->used = work->count;
}

void ReplaceMissing(const SlotGeometry& g, SlotMap* map, UpdateWork* work) {
  HeadSlots& slots = *work->slots;
  const int64_t end = g.begin + slots.used;
  for (int64_t slot = g.begin; slot < end; ++slot) {
    map->At(g.Position(slots, slot)) = static_cast<int32_t>(slot);
  }
  int64_t missing = 0;
  for (int64_t i = 0; i < work->count; ++i) {
    const int32_t slot = map->At(work->positions[i]);
    if (slot >= 0) {
      g.Update(slots, slot) = slots.update;
    } else {
      work->moved_positions[missing++] = work->positions[i];
    }
  }
  for (int64_t slot = g.begin; slot < end; ++slot) map->At(g.Position(slots, slot)) = -1;

  const int64_t fresh = std::min(missing, work->capacity - slots.used);
  slots.used += fresh;
  const int64_t victims = missing - fresh;
  map->stale.clear();
  if (victims > 0) {
    for (int64_t slot = g.begin; slot < end; ++slot) {
      if (g.Update(slots, slot) != slots.update) {
        map->stale.emplace_back(g.Update(slots, slot), static_cast<int32_t>(slot));
      }
    }
    LC_CHECK(victims <= static_cast<int64_t>(map->stale.size()), "{} rows, {} slots", work->count,
             work->capacity);
    std::nth_element(map->stale.begin(), map->stale.begin() + (victims - 1), map->stale.end());
  }
  for (int64_t i = 0; i < victims; ++i) {
    Place(g, map->stale[static_cast<size_t>(i)].second, work->moved_positions[i], work);
  }
  for (int64_t i = 0; i < fresh; ++i) Place(g, end + i, work->moved_positions[victims + i], work);
}

}  // namespace

int64_t SlotsIn(uint64_t page_bytes, const ops::RowFormat& format) {
  return static_cast<int64_t>(page_bytes / (format.row_bytes() + kArrays * sizeof(int32_t)));
}

void ClearSlots(HeadSlots* slots) {
  slots->used = 0;
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
  g.Update(*slots, slot) = slots->update;
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
        static thread_local SlotMap map;
        for (int64_t i = begin; i < end; ++i) {
          UpdateWork& item = work[static_cast<size_t>(i)];
          LC_CHECK(item.count <= item.capacity, "{} rows, {} slots", item.count, item.capacity);
          ++item.slots->update;
          item.moved = 0;
          if (delta) {
            ReplaceMissing(geometry, &map, &item);
          } else {
            ReplaceAll(geometry, &item);
          }
          ListAttended(geometry, item.slots);
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

void AddAttended(const SlotGeometry& g, const HeadSlots& slots, std::vector<ops::RowPart>* parts) {
  for (size_t page = 0; page < slots.attended.size(); ++page) {
    const int64_t count = slots.attended[page];
    if (count == 0) continue;
    const int32_t* list = g.Attended(slots, static_cast<int64_t>(page));
    const bool run = list[count - 1] - list[0] == count - 1;
    parts->push_back(
        {.rows = g.Rows(slots), .indices = run ? nullptr : list, .begin = list[0], .count = count});
  }
}

}  // namespace litecache::kv
