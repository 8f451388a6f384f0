// The slots and labels of every sequence, in pages of the device pool.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "kv/litecache/head_slots_cpu.h"
#include "kv/litecache/shape.h"
#include "kv/pages/page_pool.h"

namespace litecache::kv {

struct SequenceSlots {
  std::vector<HeadSlots> heads;  // [offloaded]
  std::vector<PageId> label_ids;
  std::vector<std::byte*> labels;
  // Pages may be shared: the sequence was forked or is a fork, and has not grown since. If false, a
  // step need not check every page.
  bool shares = false;
  // What each layer's slots hold. A prompt chunk empties them and the next decode step fills them,
  // so that prompt chunks and forks of prompts do not carry slots around. Drafts, which are
  // followed by more decode steps, leave the cached rows.
  enum class Filled : uint8_t { kNothing, kCachedRows, kAll };
  std::vector<Filled> filled;  // [layers]
};

// Pages are shared by forks until one of them writes; it then copies the pages it writes to. Not
// thread-safe.
class SlotTable {
 public:
  // shape and pool must outlive the table.
  SlotTable(const Shape& shape, PagePool& pool) : shape_(shape), pool_(pool) {}
  ~SlotTable();
  SlotTable(const SlotTable&) = delete;
  SlotTable& operator=(const SlotTable&) = delete;

  void Create(SequenceId id);
  void Fork(SequenceId parent, SequenceId child);
  void Release(SequenceId id);

  struct Growth {
    SequenceId id = 0;
    // Pages of every head; 0: only labels are written, not slots (a prompt chunk).
    int64_t slot_pages = 0;
  };
  // Number of pages that Grow() would take.
  int64_t PagesNeeded(std::span<const Growth> growths);
  // Makes labels, and slots if requested, writable. The pool must have the pages in reserve.
  void Grow(std::span<const Growth> growths);
  // Leaves every head at most `slot_pages` pages. Returns whether rows may have been in others.
  bool Shrink(SequenceId id, int64_t slot_pages);

  // Number of pages these sequences hold; shared pages count once.
  int64_t PagesHeld(std::span<const SequenceId> ids) const;

  SequenceSlots& Get(SequenceId id) { return sequences_.at(id); }
  // Label [group][head_dim] of offloaded list `list`.
  float* Label(const SequenceSlots& slots, int64_t list) const {
    const int64_t a_page = shape_.labels_a_page();
    return reinterpret_cast<float*>(slots.labels[static_cast<size_t>(list / a_page)] +
                                    static_cast<uint64_t>(list % a_page) * shape_.label_bytes());
  }

 private:
  // Whether Grow() needs to take or copy nothing.
  bool HasRoom(const SequenceSlots& slots, const Growth& growth) const;
  void Extend(int64_t count, std::vector<PageId>* ids, std::vector<std::byte*>* pages);
  void MakeOwn(std::vector<PageId>* ids, std::vector<std::byte*>* pages);

  const Shape& shape_;
  PagePool& pool_;
  std::unordered_map<SequenceId, SequenceSlots> sequences_;
  std::vector<PageId> shared_;  // scratch of PagesNeeded
};

}  // namespace litecache::kv
