#include "kv/pages/page_pool.h"

#include <algorithm>
#include <bit>
#include <functional>
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
  limit_ = capacity_;
  const uint64_t slab_pages = std::bit_floor(std::max<uint64_t>(slab_bytes / page_bytes, 1));
  slab_shift_ = std::countr_zero(slab_pages);
  slab_mask_ = static_cast<PageId>(slab_pages - 1);
}

void PagePool::AddSlab(std::vector<PageId>* fresh) {
  const auto empty = std::ranges::find(slabs_, nullptr, &Buffer::data);
  const auto slab = static_cast<size_t>(empty - slabs_.begin());
  const int64_t first = static_cast<int64_t>(slab) << slab_shift_;
  const int64_t pages = std::min<int64_t>(int64_t{1} << slab_shift_, capacity_ - first);
  Buffer memory = device_.Allocate(static_cast<size_t>(pages) * page_bytes_);
  if (empty == slabs_.end()) {
    references_.resize(static_cast<size_t>(first + pages), 0);
    slabs_.emplace_back();
  }
  slabs_[slab] = std::move(memory);
  for (int64_t page = first; page < first + pages; ++page) {
    fresh->push_back(static_cast<PageId>(page));
  }
}

void PagePool::AddPages(int64_t count) {
  if (count <= 0) return;
  std::vector<PageId> fresh;
  const auto list = [&] {
    free_.reserve(references_.size());  // a page returned later must not need memory
    // New pages are pushed below the free ones, with the first of them on top.
    std::ranges::sort(fresh, std::greater());
    free_.insert(free_.begin(), fresh.begin(), fresh.end());
  };
  try {
    while (static_cast<int64_t>(fresh.size()) < count) AddSlab(&fresh);
  } catch (...) {
    list();  // the pages that there is memory for
    throw;
  }
  list();
}

void PagePool::ReleaseFree() {
  bool released = false;
  for (size_t slab = 0; slab < slabs_.size(); ++slab) {
    const size_t first = slab << slab_shift_;
    const size_t end = std::min(first + slab_mask_ + 1, references_.size());
    if (slabs_[slab].data() == nullptr ||
        std::any_of(references_.begin() + static_cast<int64_t>(first),
                    references_.begin() + static_cast<int64_t>(end),
                    [](uint32_t references) { return references > 0; })) {
      continue;
    }
    slabs_[slab] = Buffer();
    released = true;
  }
  if (!released) return;
  std::erase_if(free_, [&](PageId page) { return slabs_[page >> slab_shift_].data() == nullptr; });
}

void PagePool::Limit(uint64_t bytes) {
  limit_ = static_cast<int64_t>(
      std::min<uint64_t>(bytes / page_bytes_, static_cast<uint64_t>(capacity_)));
}

void PagePool::Reserve(int64_t count) {
  if (count > available()) {
    throw CapacityError(
        "{}: {} more needed, but {} of the budget of {} are in use ({} pages of {}, {} free)",
        name_, FormatBytes(static_cast<uint64_t>(count) * page_bytes_),
        FormatBytes(static_cast<uint64_t>(used_) * page_bytes_),
        FormatBytes(static_cast<uint64_t>(limit_) * page_bytes_), count, FormatBytes(page_bytes_),
        available());
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
