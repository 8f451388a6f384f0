// Which blocks a block cache keeps: the least frequently used one goes, of equally used ones the
// one whose last use is longest ago.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace litecache::kv::pqcache {

// Every call takes constant time: a list of uses ascending, each with the slots used so often, the
// newest first. The lists are links between places of arrays, for on a GPU a step waits for the
// counting of the one before it.
class Lfu {
 public:
  // Slots are numbered [0, capacity()). The capacity grows, it never falls.
  void SetCapacity(int64_t capacity) { capacity_ = capacity; }
  int64_t capacity() const { return capacity_; }
  int64_t size() const { return static_cast<int64_t>(entries_.size()); }

  // The slot of a key, a small number from 0 on; -1 where it has none. Is no use of it.
  int64_t SlotOf(int64_t key) const {
    return static_cast<size_t>(key) < slots_.size() ? slots_[static_cast<size_t>(key)] : kNone;
  }

  // A use. Returns the slot, which was another key's or nobody's before where `fresh`; -1 where the
  // capacity is 0.
  int64_t Use(int64_t key, bool* fresh) {
    int32_t slot = static_cast<int32_t>(SlotOf(key));
    *fresh = slot == kNone && capacity_ > 0;
    if (slot != kNone) {
      Raise(slot);
    } else if (capacity_ > 0) {
      slot = size() < capacity_ ? Add() : Evict();
      if (slots_.size() <= static_cast<size_t>(key)) {
        slots_.resize(static_cast<size_t>(key) + 1, kNone);
      }
      slots_[static_cast<size_t>(key)] = slot;
      At(slot).key = key;
      if (least_ == kNone || uses_[static_cast<size_t>(least_)].count > 1) InsertUses(1, kNone);
      PushNewest(slot, least_);
    }
    return slot;
  }

 private:
  static constexpr int32_t kNone = -1;
  // Of a slot. Neighbours among those used equally often.
  struct Entry {
    int64_t key = 0;
    int32_t newer = kNone, older = kNone;
    int32_t uses = kNone;  // place in uses_
  };
  struct Uses {
    int64_t count = 0;
    int32_t newest = kNone, oldest = kNone;  // slots
    int32_t fewer = kNone, more = kNone;     // places
  };

  Entry& At(int32_t slot) { return entries_[static_cast<size_t>(slot)]; }
  Uses& UsesAt(int32_t place) { return uses_[static_cast<size_t>(place)]; }

  int32_t Add() {
    entries_.emplace_back();
    return static_cast<int32_t>(entries_.size()) - 1;
  }
  int32_t Evict() {
    const int32_t slot = UsesAt(least_).oldest;
    slots_[static_cast<size_t>(At(slot).key)] = kNone;
    Remove(slot);
    return slot;
  }
  void Raise(int32_t slot) {
    const int32_t from = At(slot).uses, more = UsesAt(from).more;
    const int64_t count = UsesAt(from).count + 1;
    const bool there = more != kNone && UsesAt(more).count == count;
    const int32_t to = there ? more : InsertUses(count, from);
    Remove(slot);
    PushNewest(slot, to);
  }
  // An empty list behind `fewer`, or as the first.
  int32_t InsertUses(int64_t count, int32_t fewer) {
    int32_t place = static_cast<int32_t>(uses_.size());
    if (free_ != kNone) {
      place = free_;
      free_ = UsesAt(place).more;
    } else {
      uses_.emplace_back();
    }
    const int32_t more = fewer == kNone ? least_ : UsesAt(fewer).more;
    UsesAt(place) = {.count = count, .fewer = fewer, .more = more};
    if (more != kNone) UsesAt(more).fewer = place;
    (fewer == kNone ? least_ : UsesAt(fewer).more) = place;
    return place;
  }
  void PushNewest(int32_t slot, int32_t place) {
    Uses& uses = UsesAt(place);
    At(slot).uses = place;
    At(slot).newer = kNone;
    At(slot).older = uses.newest;
    (uses.newest == kNone ? uses.oldest : At(uses.newest).newer) = slot;
    uses.newest = slot;
  }
  // From its list, which goes with its last slot.
  void Remove(int32_t slot) {
    const Entry entry = At(slot);
    Uses& uses = UsesAt(entry.uses);
    (entry.newer == kNone ? uses.newest : At(entry.newer).older) = entry.older;
    (entry.older == kNone ? uses.oldest : At(entry.older).newer) = entry.newer;
    if (uses.newest != kNone) return;
    (uses.fewer == kNone ? least_ : UsesAt(uses.fewer).more) = uses.more;
    if (uses.more != kNone) UsesAt(uses.more).fewer = uses.fewer;
    uses.more = free_;
    free_ = entry.uses;
  }

  int64_t capacity_ = 0;
  std::vector<Entry> entries_;  // by slot
  std::vector<Uses> uses_;
  std::vector<int32_t> slots_;            // by key
  int32_t least_ = kNone, free_ = kNone;  // places: the fewest uses; one that no list has
};

}  // namespace litecache::kv::pqcache
