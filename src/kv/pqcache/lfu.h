// Which blocks a block cache keeps: the least frequently used one goes, of equally used ones the
// one whose last use is longest ago.
#pragma once

#include <cstdint>
#include <list>
#include <unordered_map>

namespace litecache::kv::pqcache {

// Every call takes constant time: a list of uses ascending, each with the keys used so often, the
// newest first.
class Lfu {
 public:
  Lfu() = default;
  Lfu(Lfu&&) = default;  // a copy's keys would lie in the other's lists
  Lfu& operator=(Lfu&&) = default;

  // Slots are numbered [0, capacity()). The capacity grows, it never falls.
  void SetCapacity(int64_t capacity) { capacity_ = capacity; }
  int64_t capacity() const { return capacity_; }
  int64_t size() const { return static_cast<int64_t>(places_.size()); }

  // The slot of a key, -1 where it has none. Is no use of it.
  int64_t SlotOf(int64_t key) const {
    const auto found = places_.find(key);
    return found == places_.end() ? -1 : found->second->slot;
  }

  // A use. Returns the slot, which was another key's or nobody's before where `fresh`; -1 where the
  // capacity is 0.
  int64_t Use(int64_t key, bool* fresh) {
    *fresh = false;
    if (const auto found = places_.find(key); found != places_.end()) {
      found->second = Raise(found->second);
      return found->second->slot;
    }
    if (capacity_ == 0) return -1;
    *fresh = true;
    const int64_t slot = size() < capacity_ ? size() : Evict();
    if (uses_.empty() || uses_.front().count > 1) uses_.push_front({1, {}});
    uses_.front().entries.push_front({key, slot, uses_.begin()});
    places_[key] = uses_.front().entries.begin();
    return slot;
  }

 private:
  struct Entry;
  struct Uses {
    int64_t count = 0;
    std::list<Entry> entries;
  };
  struct Entry {
    int64_t key = 0, slot = 0;
    std::list<Uses>::iterator uses;
  };

  int64_t Evict() {
    Uses& least = uses_.front();
    const int64_t slot = least.entries.back().slot;
    places_.erase(least.entries.back().key);
    least.entries.pop_back();
    if (least.entries.empty()) uses_.pop_front();
    return slot;
  }
  std::list<Entry>::iterator Raise(std::list<Entry>::iterator entry) {
    const auto from = entry->uses;
    auto to = std::next(from);
    if (to == uses_.end() || to->count != from->count + 1) {
      to = uses_.insert(to, {from->count + 1, {}});
    }
    to->entries.splice(to->entries.begin(), from->entries, entry);
    entry->uses = to;
    if (from->entries.empty()) uses_.erase(from);
    return entry;
  }

  int64_t capacity_ = 0;
  std::list<Uses> uses_;
  std::unordered_map<int64_t, std::list<Entry>::iterator> places_;
};

}  // namespace litecache::kv::pqcache
