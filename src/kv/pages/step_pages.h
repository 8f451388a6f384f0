// Staging pages that a step takes from a pool and returns.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kv/pages/page_pool.h"

namespace litecache::kv {

class StepPages {
 public:
  // The pool must outlive this object.
  explicit StepPages(PagePool& pool) : pool_(pool) {}
  ~StepPages() { Drop(); }
  StepPages(const StepPages&) = delete;
  StepPages& operator=(const StepPages&) = delete;

  // Takes `count` pages that the pool has in reserve, after returning the earlier ones.
  void Take(int64_t count) {
    Drop();
    for (; count > 0; --count) {
      ids_.push_back(pool_.Take());
      pages_.push_back(pool_.data(ids_.back()));
    }
  }
  void Drop() {
    for (const PageId page : ids_) pool_.DropReference(page);
    ids_.clear();
    pages_.clear();
  }
  int64_t size() const { return static_cast<int64_t>(ids_.size()); }
  std::byte* const* data() const { return pages_.data(); }

 private:
  PagePool& pool_;
  std::vector<PageId> ids_;
  std::vector<std::byte*> pages_;
};

}  // namespace litecache::kv
