// Pages of equal size in device memory, under a hard budget, with reference counts.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "device/device.h"

namespace litecache::kv {

using PageId = uint32_t;

// Memory is allocated from the device in slabs, when pages are first needed or ahead
// (AllocateAhead), and kept until ReleaseFree() or the pool's end: memory grows with use, and a
// returned page is reused without a system call. Not thread-safe.
class PagePool {
 public:
  // page_bytes > 0; at most budget_bytes / page_bytes pages will exist. name: the budget's name in
  // error messages.
  PagePool(Device& device, uint64_t page_bytes, uint64_t budget_bytes,
           std::string name = "KV cache", uint64_t slab_bytes = kSlabBytes);
  // Eight huge pages: few allocations, and little memory allocated before it is used.
  static constexpr uint64_t kSlabBytes = 16u << 20;

  // Makes sure that `count` pages can be taken without an error. Throws CapacityError with the
  // numbers, with nothing visibly changed, if the budget or device memory is too small.
  void Reserve(int64_t count);
  // Allocates until the pool has `bytes` bytes of pages, used and free, or as many as the budget
  // and device memory allow: until use exceeds that, taking pages allocates nothing.
  void AllocateAhead(uint64_t bytes);
  // Returns slabs without used pages to the device.
  void ReleaseFree();
  // Lowers the budget, or raises it again up to that of the constructor, for pages taken from now
  // on: pools that share a budget leave each other what they use.
  void Limit(uint64_t bytes);
  // Takes one page with one reference; contents undefined. It must have been reserved (Reserve).
  PageId Take();
  void AddReference(PageId page);
  // Drops a reference; the last one returns the page to the free list.
  void DropReference(PageId page);

  // Copies the first `bytes` bytes of a page to another.
  void CopyPage(PageId to, PageId from, uint64_t bytes) {
    device_.CopyWithin(data(to), data(from), bytes);
  }

  // Copy bytes of a page to host memory and back.
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

  // Whether `next` follows `page` in the same allocation, so that one copy can cover both.
  bool AreAdjacent(PageId page, PageId next) const {
    return next == page + 1 && (next & slab_mask_) != 0;
  }

  uint64_t page_bytes() const { return page_bytes_; }
  int64_t capacity() const { return capacity_; }  // pages the budget allows, without Limit()
  int64_t used() const { return used_; }          // pages with references
  int64_t peak() const { return peak_; }          // the largest value of used()
  int64_t available() const { return std::max<int64_t>(limit_ - used_, 0); }
  // Number of pages with memory.
  int64_t provided() const { return used_ + static_cast<int64_t>(free_.size()); }

 private:
  // Allocates at least `count` more pages, or all that the budget allows.
  void AddPages(int64_t count);
  // Allocates a slab and appends its pages to `fresh`.
  void AddSlab(std::vector<PageId>* fresh);

  Device& device_;
  std::string name_;
  uint64_t page_bytes_;
  int64_t capacity_;
  int64_t limit_;  // at most capacity_
  int64_t used_ = 0;
  int64_t peak_ = 0;
  int slab_shift_;
  PageId slab_mask_;
  std::vector<Buffer> slabs_;         // without memory after ReleaseFree()
  std::vector<uint32_t> references_;  // of every page that slabs_ has a place for
  // Last returned, first taken: it may still be in the CPU's cache.
  std::vector<PageId> free_;
};

// Number of pages that sequences need to copy before they write to `shared`: one entry for each
// sequence and page, pages with several references only. Of r sequences that share a page, the
// first r - 1 that write copy it; the last one then owns it alone. Sorts `shared`.
int64_t CopiesNeeded(const PagePool& pool, std::vector<PageId>* shared);

}  // namespace litecache::kv
