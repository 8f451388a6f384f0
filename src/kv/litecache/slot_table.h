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
  // Pages may have other owners: it was forked, or is a fork, and has not grown since. Without, a
  // step need not look at every page.
  bool shares = false;
  // Layers whose slots hold what belongs there. Not after a prompt's chunk: the next decode step
  // fills them (chunks of a prompt and forks of it carry no slots around).
  std::vector<uint8_t> filled;  // [layers]
};

// Pages are shared by forks until one of them writes; then it copies all that it writes to. Not
// thread-safe.
class SlotTable {
 public:
  // Both must outlive the table.
  SlotTable(const Shape& shape, PagePool& pool) : shape_(shape), pool_(pool) {}
  ~SlotTable();
  SlotTable(const SlotTable&) = delete;
  SlotTable& operator=(const SlotTable&) = delete;

  void Create(SequenceId id);
  void Fork(SequenceId parent, SequenceId child);
  void Release(SequenceId id);

  struct Growth {
    SequenceId id = 0;
    // Pages of every head; 0: slots are not written to (a prompt's chunk), labels are.
    int64_t slot_pages = 0;
  };
  // Pages Grow() would take.
  int64_t PagesNeeded(std::span<const Growth> growths);
  // Makes labels, and slots where asked, writable. The pool must have the pages in reserve.
  void Grow(std::span<const Growth> growths);

  // Pages these sequences hold, those that several hold counted once.
  int64_t PagesHeld(std::span<const SequenceId> ids) const;

  SequenceSlots& Get(SequenceId id) { return sequences_.at(id); }
  // [group][head_dim] of offloaded list `list`.
  float* Label(const SequenceSlots& slots, int64_t list) const {
    const int64_t a_page = shape_.labels_a_page();
    return reinterpret_cast<float*>(slots.labels[static_cast<size_t>(list / a_page)] +
                                    static_cast<uint64_t>(list % a_page) * shape_.label_bytes());
  }

 private:
  // Nothing is to be taken or copied.
  bool HasRoom(const SequenceSlots& slots, const Growth& growth) const;
  void Extend(int64_t count, std::vector<PageId>* ids, std::vector<std::byte*>* pages);
  void MakeOwn(std::vector<PageId>* ids, std::vector<std::byte*>* pages);

  const Shape& shape_;
  PagePool& pool_;
  std::unordered_map<SequenceId, SequenceSlots> sequences_;
  std::vector<PageId> shared_;  // scratch of PagesNeeded
};

}  // namespace litecache::kv
