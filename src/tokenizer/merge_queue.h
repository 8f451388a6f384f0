// Queues of candidate merges: lowest rank first, then leftmost.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace litecache::tokenizer {

struct MergeCandidate {
  uint32_t rank;
  int32_t position;  // of the left symbol
  int32_t result;    // id of the merged token
};

// A binary heap, for words and short segments.
class MergeHeap {
 public:
  void Push(const MergeCandidate& candidate) {
    heap_.push_back(candidate);
    std::push_heap(heap_.begin(), heap_.end(), &Behind);
  }
  // Takes the next candidate; returns false if there is none.
  bool Pop(MergeCandidate* candidate) {
    if (heap_.empty()) return false;
    *candidate = heap_.front();
    std::pop_heap(heap_.begin(), heap_.end(), &Behind);
    heap_.pop_back();
    return true;
  }

 private:
  static bool Behind(const MergeCandidate& a, const MergeCandidate& b) {
    return a.rank != b.rank ? a.rank > b.rank : a.position > b.position;
  }
  std::vector<MergeCandidate> heap_;
};

// One list per rank, for long segments: a megabyte of one letter has few ranks and candidates that
// come nearly in order, so most of the work is a sequential pass through memory instead of a heap's
// scattered accesses.
class MergeRanks {
 public:
  explicit MergeRanks(size_t rank_count) : list_of_rank_(rank_count, -1) {}

  void Push(const MergeCandidate& candidate) {
    int32_t& index = list_of_rank_[candidate.rank];
    if (index < 0) {
      if (free_.empty()) {
        index = static_cast<int32_t>(lists_.size());
        lists_.emplace_back();
      } else {
        index = free_.back();
        free_.pop_back();
      }
      ranks_.push_back(candidate.rank);
      std::push_heap(ranks_.begin(), ranks_.end(), std::greater<>());
    }
    List& list = lists_[static_cast<size_t>(index)];
    const Item item{candidate.position, candidate.result};
    if (!list.started) {
      list.sorted &= list.items.empty() || !(item < list.items.back());
      list.items.push_back(item);
      return;
    }
    // The list is already being emptied: the rest of it becomes a heap, once.
    if (!list.is_heap) {
      list.items.erase(list.items.begin(), list.items.begin() + static_cast<ptrdiff_t>(list.next));
      list.next = 0;
      list.is_heap = true;
      std::make_heap(list.items.begin(), list.items.end(), std::greater<>());
    }
    list.items.push_back(item);
    std::push_heap(list.items.begin(), list.items.end(), std::greater<>());
  }

  bool Pop(MergeCandidate* candidate) {
    if (ranks_.empty()) return false;
    const uint32_t rank = ranks_.front();
    const int32_t index = list_of_rank_[rank];
    List& list = lists_[static_cast<size_t>(index)];
    if (!list.started) {
      list.started = true;
      if (!list.sorted) std::sort(list.items.begin(), list.items.end());
    }
    Item item = list.items[list.next];
    if (list.is_heap) {
      item = list.items.front();
      std::pop_heap(list.items.begin(), list.items.end(), std::greater<>());
      list.items.pop_back();
    } else {
      ++list.next;
    }
    if (list.next == list.items.size()) {
      list.items.clear();
      list.next = 0;
      list.started = list.is_heap = false;
      list.sorted = true;
      free_.push_back(index);
      list_of_rank_[rank] = -1;
      std::pop_heap(ranks_.begin(), ranks_.end(), std::greater<>());
      ranks_.pop_back();
    }
    *candidate = {rank, item.position, item.result};
    return true;
  }

 private:
  struct Item {
    int32_t position;
    int32_t result;
    auto operator<=>(const Item&) const = default;
  };
  struct List {
    std::vector<Item> items;
    size_t next = 0;       // items before this were popped (while it is not a heap)
    bool sorted = true;    // the items arrived in order
    bool started = false;  // an item was popped
    bool is_heap = false;
  };

  std::vector<int32_t> list_of_rank_;  // index into lists_, or -1
  std::vector<List> lists_;
  std::vector<int32_t> free_;    // lists_ that belong to no rank
  std::vector<uint32_t> ranks_;  // ranks with candidates, a min-heap
};

}  // namespace litecache::tokenizer
