// Pages of the device pool in which a sequence stages a layer's rows, kept across steps so that
// their addresses do not change, and their lists for kernels.
#pragma once

#include <cstdint>
#include <vector>

#include "kv/pages/device_pages_cuda.h"
#include "kv/pages/page_pool.h"

namespace litecache::kv {

class StagedPages {
 public:
  int64_t blocks(int64_t lists) const { return static_cast<int64_t>(ids_.size()) / lists; }
  // Number of pages that Grow() takes for `blocks` blocks of `lists` lists.
  int64_t Missing(int64_t lists, int64_t blocks) const {
    const int64_t missing = lists * blocks - static_cast<int64_t>(ids_.size());
    return missing > 0 ? missing : 0;
  }
  // Takes pages that the pool has in reserve; never shrinks.
  void Grow(PagePool& pool, int64_t lists, int64_t blocks) {
    for (int64_t count = Missing(lists, blocks); count > 0; --count) ids_.push_back(pool.Take());
  }
  void Drop(PagePool& pool) {
    for (const PageId page : ids_) pool.DropReference(page);
    ids_.clear();
    known_ = 0;
  }
  std::byte* At(const PagePool& pool, int64_t lists, int64_t list, int64_t block) const {
    return pool.data(ids_[static_cast<size_t>(block * lists + list)]);
  }
  // Uploads new pages. The page of list i's block b is the (b * lists + i)-th.
  void Update(Device& device, const PagePool& pool, int64_t lists) {
    pages_.Update(device, lists, blocks(lists), known_,
                  [&](int64_t list, int64_t b) { return At(pool, lists, list, b); });
    known_ = blocks(lists);
  }
  std::byte* const* device() const { return pages_.device(); }

 private:
  std::vector<PageId> ids_;
  DevicePages pages_;
  int64_t known_ = 0;  // number of blocks that the device has
};

}  // namespace litecache::kv
