#include "kv/pages/page_pool.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <utility>

#include "base/error.h"
#include "base/units.h"

namespace litecache::kv {
PagePool::PagePool(Device& device, uint64_t page_bytes, uint64_t budget_bytes, std::string name,
                   uint64_t slab_bytes)
    : device_(device), name_(std::move(name)), page_bytes_(page_bytes) {
  LC_CHECK(page_bytes > 0);
  capacity_ = static_cast<int64_t>(
      std::min<uint64_t>(budget_bytes / page_bytes, std::numeric_limits<PageId>::max()));
  const uint64_t slab_pages = std::bit_floor(std::max<uint64_t>(slab_bytes / page_bytes, 1));
  slab_shift_ = std::countr_zero(slab_pages);
  slab_mask_ = static_cast<PageId>(slab_pages - 1);
}

void PagePool::AddSlab() {
  const int64_t first = static_cast<int64_t>(references_.size());
  const int64_t pages = std::min<int64_t>(int64_t{1} << slab_shift_, capacity_ - first);
  slabs_.push_back(device_.Allocate(static_cast<size_t>(pages) * page_bytes_));
  references_.resize(static_cast<size_t>(first + pages), 0);
}

void PagePool::AddPages(int64_t count) {
  const int64_t first = provided();
  const auto list = [&] {
    free_.reserve(references_.size());  // a page returned later must not need memory
    // New pages are pushed below the free ones, with the first of them on top.
    std::vector<PageId> fresh;
    for (int64_t page = provided(); page-- > first;) fresh.push_back(static_cast<PageId>(page));
    free_.insert(free_.begin(), fresh.begin(), fresh.end());
  };
  try {
    while (provided() < first + count) AddSlab();
  } catch (...) {
    list();  // the pages that there is memory for
    throw;
  }
  list();
}

void PagePool::Reserve(int64_t count) {
  if (count > available()) {
    throw CapacityError(
        "{}: {} more needed, but {} of the budget of {} are in use ({} pages of {}, {} free)",
        name_, FormatBytes(static_cast<uint64_t>(count) * page_bytes_),
        FormatBytes(static_cast<uint64_t>(used_) * page_bytes_),
        FormatBytes(static_cast<uint64_t>(capacity_) * page_bytes_), count,
        FormatBytes(page_bytes_), available());
  }
  AddPages(count - static_cast<int64_t>(free_.size()));
}

void PagePool::AllocateAhead(uint64_t bytes) {
  const auto pages = static_cast<int64_t>(std::min<uint64_t>(
      bytes / page_bytes_ + (bytes % page_bytes_ > 0 ? 1 : 0), static_cast<uint64_t>(capacity_)));
  try {
    AddPages(pages - provided());
  } catch (const CapacityError&) {
    // Callers that need the pages get the error.
  }
}

PageId PagePool::Take() {
  LC_CHECK(!free_.empty(), "a page was taken without Reserve()");
  const PageId page = free_.back();
  free_.pop_back();
  references_[page] = 1;
  peak_ = std::max(peak_, ++used_);
  return page;
}

void PagePool::AddReference(PageId page) {
  LC_CHECK(page < references_.size() && references_[page] > 0);
  ++references_[page];
}

void PagePool::DropReference(PageId page) {
  LC_CHECK(page < references_.size() && references_[page] > 0);
  if (--references_[page] == 0) {
    free_.push_back(page);
    --used_;
  }
}

int64_t CopiesNeeded(const PagePool& pool, std::vector<PageId>* shared) {
  std::sort(shared->begin(), shared->end());
  int64_t copies = 0;
  for (size_t i = 0; i < shared->size();) {
    size_t end = i;
    while (end < shared->size() && (*shared)[end] == (*shared)[i]) ++end;
    copies += std::min(static_cast<int64_t>(end - i), pool.references((*shared)[i]) - 1);
    i = end;
  }
  return copies;
}

}  // namespace litecache::kv
