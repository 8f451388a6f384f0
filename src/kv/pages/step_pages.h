// Pages of a pool that a step takes and gives back: staging.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kv/pages/page_pool.h"

namespace litecache::kv {

class StepPages {
 public:
  // The pool must outlive this.
  explicit StepPages(PagePool& pool) : pool_(pool) {}
  ~StepPages() { Drop(); }
  StepPages(const StepPages&) = delete;
  StepPages& operator=(const StepPages&) = delete;

  // `count` pages that the pool has in reserve; those taken before go back.
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
