// Equal pages of device memory under a hard budget, counted by reference.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "device/device.h"

namespace litecache::kv {

using PageId = uint32_t;

// Memory is taken from the device in slabs, as pages are first needed or before (AllocateAhead),
// and kept until the pool dies: memory grows with what is used, and a page that was returned is
// handed out again without a call to the system. Not thread-safe.
class PagePool {
 public:
  // page_bytes > 0; at most budget_bytes / page_bytes pages will ever exist. `name` is what errors
  // call the budget.
  PagePool(Device& device, uint64_t page_bytes, uint64_t budget_bytes,
           std::string name = "KV cache", uint64_t slab_bytes = kSlabBytes);
  // Eight huge pages: few enough calls to the device, little enough taken ahead of use.
  static constexpr uint64_t kSlabBytes = 16u << 20;

  // Makes sure that `count` pages can be taken without an error. Throws CapacityError with the
  // numbers, having changed nothing that can be seen, when the budget or the device's memory is too
  // small.
  void Reserve(int64_t count);
  // Takes memory until there are pages of `bytes` bytes, used and free ones, or as many as the
  // budget and the device's memory allow: what comes to use no more than that takes none later.
  void AllocateAhead(uint64_t bytes);
  // One page with one reference, contents undefined. Reserve() must have promised it.
  PageId Take();
  void AddReference(PageId page);
  // Returns the page to the free list with its last reference.
  void DropReference(PageId page);

  // The first `bytes` of a page into another.
  void CopyPage(PageId to, PageId from, uint64_t bytes) {
    device_.CopyWithin(data(to), data(from), bytes);
  }

  // Bytes of pages to the host's memory and back.
  void Read(std::byte* host, const std::byte* of_page, uint64_t bytes) const {
    device_.Download(host, of_page, bytes);
  }
  void Write(std::byte* of_page, const std::byte* host, uint64_t bytes) {
    device_.Upload(of_page, host, bytes);
  }

  int64_t references(PageId page) const { return references_[page]; }
  std::byte* data(PageId page) const {
    return slabs_[page >> slab_shift_].as<std::byte>() + (page & slab_mask_) * page_bytes_;
  }

  // Whether `next` lies right behind `page`, in the same allocation: one copy can have both.
  bool Adjoin(PageId page, PageId next) const {
    return next == page + 1 && (next & slab_mask_) != 0;
  }

  uint64_t page_bytes() const { return page_bytes_; }
  int64_t capacity() const { return capacity_; }  // pages the budget allows
  int64_t used() const { return used_; }          // pages with a reference
  int64_t peak() const { return peak_; }          // the most that were used at once
  int64_t available() const { return capacity_ - used_; }
  // Pages that there is memory for.
  int64_t provided() const { return static_cast<int64_t>(references_.size()); }

 private:
  // Takes memory for `count` pages more, at most those that the budget has.
  void AddPages(int64_t count);
  void AddSlab();

  Device& device_;
  std::string name_;
  uint64_t page_bytes_;
  int64_t capacity_;
  int64_t used_ = 0;
  int64_t peak_ = 0;
  int slab_shift_;
  PageId slab_mask_;
  std::vector<Buffer> slabs_;
  std::vector<uint32_t> references_;  // of every page that exists
  std::vector<PageId> free_;          // last returned, first taken: its lines may still be cached
};

// Pages that sequences take which are about to write to `shared`: one entry a sequence and page, of
// pages with several references. Of r sequences that share a page, the first r - 1 that write copy
// it; the last one left owns it alone by then. Sorts `shared`.
int64_t CopiesNeeded(const PagePool& pool, std::vector<PageId>* shared);

}  // namespace litecache::kv
