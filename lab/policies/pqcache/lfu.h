// Eviction order of a block cache: the least frequently used block is evicted; ties go to the one
// whose last use is longest ago.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "lab/namespaces.h"

namespace litecache::lab::pqcache {

// Every call takes constant time: a list of use counts in ascending order, each with the slots used
// that often, the newest first. The lists are links between array indices, because on a GPU a step
// waits for the counting of the previous one.
class Lfu {
 public:
  // Slots are numbered [0, capacity()). The capacity only grows.
  void SetCapacity(int64_t capacity) { capacity_ = capacity; }
  int64_t capacity() const { return capacity_; }
  int64_t size() const { return static_cast<int64_t>(entries_.size()); }

  // The slot of a key (a small non-negative number), or -1. Does not count as a use.
  int64_t SlotOf(int64_t key) const {
    return static_cast<size_t>(key) < slots_.size() ? slots_[static_cast<size_t>(key)] : kNone;
  }

  // Counts a use. Returns the slot; if `fresh`, it belonged to another key or to none before.
  // Returns -1 if the capacity is 0.
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
  // A slot, linked to the others used equally often.
  struct Entry {
    int64_t key = 0;
    int32_t newer = kNone, older = kNone;
    int32_t uses = kNone;  // index in uses_
  };
  struct Uses {
    int64_t count = 0;
    int32_t newest = kNone, oldest = kNone;  // slots
    int32_t fewer = kNone, more = kNone;     // indices
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
  // Inserts an empty list after `fewer`, or as the first.
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
  // Removes a slot from its list; the list is removed with its last slot.
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
  std::vector<Entry> entries_;  // indexed by slot
  std::vector<Uses> uses_;
  std::vector<int32_t> slots_;            // indexed by key
  int32_t least_ = kNone, free_ = kNone;  // indices: the fewest uses; the first unused entry
};

}  // namespace litecache::lab::pqcache
