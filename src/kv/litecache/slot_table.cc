#include "kv/litecache/slot_table.h"

#include <algorithm>
#include <cstring>
#include <unordered_set>

namespace litecache::kv {

SlotTable::~SlotTable() {
  while (!sequences_.empty()) Release(sequences_.begin()->first);
}

void SlotTable::Create(SequenceId id) {
  SequenceSlots slots;
  slots.heads.resize(static_cast<size_t>(shape_.offloaded));
  slots.filled.assign(static_cast<size_t>(shape_.layout.layers), SequenceSlots::Filled::kNothing);
  sequences_.emplace(id, std::move(slots));
}

void SlotTable::Fork(SequenceId parent, SequenceId child) {
  Get(parent).shares = true;
  SequenceSlots copy = Get(parent);
  for (const HeadSlots& head : copy.heads) {
    for (PageId page : head.ids) pool_.AddReference(page);
  }
  for (PageId page : copy.label_ids) pool_.AddReference(page);
  sequences_.emplace(child, std::move(copy));
}

void SlotTable::Release(SequenceId id) {
  const SequenceSlots& slots = Get(id);
  for (const HeadSlots& head : slots.heads) {
    for (PageId page : head.ids) pool_.DropReference(page);
  }
  for (PageId page : slots.label_ids) pool_.DropReference(page);
  sequences_.erase(id);
}

int64_t SlotTable::PagesHeld(std::span<const SequenceId> ids) const {
  std::unordered_set<PageId> pages;
  for (const SequenceId id : ids) {
    const SequenceSlots& slots = sequences_.at(id);
    for (const HeadSlots& head : slots.heads) pages.insert(head.ids.begin(), head.ids.end());
    pages.insert(slots.label_ids.begin(), slots.label_ids.end());
  }
  return static_cast<int64_t>(pages.size());
}

int64_t SlotTable::PagesNeeded(std::span<const Growth> growths) {
  int64_t count = 0;
  shared_.clear();
  const auto add = [&](const std::vector<PageId>& ids, int64_t wanted) {
    count += std::max<int64_t>(wanted - static_cast<int64_t>(ids.size()), 0);
    for (PageId page : ids) {
      if (pool_.references(page) > 1) shared_.push_back(page);
    }
  };
  for (const Growth& growth : growths) {
    const SequenceSlots& slots = Get(growth.id);
    if (HasRoom(slots, growth)) continue;
    add(slots.label_ids, shape_.LabelPages());
    if (growth.slot_pages == 0) continue;
    for (const HeadSlots& head : slots.heads) add(head.ids, growth.slot_pages);
  }
  return count + CopiesNeeded(pool_, &shared_);
}

bool SlotTable::HasRoom(const SequenceSlots& slots, const Growth& growth) const {
  // All heads have equally many pages.
  const auto pages = slots.heads.empty() ? growth.slot_pages
                                         : static_cast<int64_t>(slots.heads.front().ids.size());
  return !slots.shares && pages >= growth.slot_pages &&
         static_cast<int64_t>(slots.label_ids.size()) >= shape_.LabelPages();
}

void SlotTable::Extend(int64_t count, std::vector<PageId>* ids, std::vector<std::byte*>* pages) {
  while (static_cast<int64_t>(ids->size()) < count) {
    ids->push_back(pool_.Take());
    pages->push_back(pool_.data(ids->back()));
  }
}

void SlotTable::MakeOwn(std::vector<PageId>* ids, std::vector<std::byte*>* pages) {
  for (size_t i = 0; i < ids->size(); ++i) {
    const PageId shared = (*ids)[i];
    if (pool_.references(shared) == 1) continue;
    const PageId own = pool_.Take();
    pool_.CopyPage(own, shared, pool_.page_bytes());
    pool_.DropReference(shared);
    (*ids)[i] = own;
    (*pages)[i] = pool_.data(own);
  }
}

void SlotTable::Grow(std::span<const Growth> growths) {
  for (const Growth& growth : growths) {
    SequenceSlots& slots = Get(growth.id);
    if (HasRoom(slots, growth)) continue;
    MakeOwn(&slots.label_ids, &slots.labels);
    Extend(shape_.LabelPages(), &slots.label_ids, &slots.labels);
    if (growth.slot_pages == 0) continue;
    for (HeadSlots& head : slots.heads) {
      MakeOwn(&head.ids, &head.pages);
      Extend(growth.slot_pages, &head.ids, &head.pages);
    }
    slots.shares = false;
  }
}

bool SlotTable::Shrink(SequenceId id, int64_t slot_pages) {
  const auto kept = static_cast<size_t>(slot_pages);
  bool dropped = false;
  for (HeadSlots& head : Get(id).heads) {
    if (head.ids.size() <= kept) continue;
    for (size_t i = kept; i < head.ids.size(); ++i) pool_.DropReference(head.ids[i]);
    head.ids.resize(kept);
    head.pages.resize(kept);
    dropped = true;
  }
  return dropped;
}

}  // namespace litecache::kv
