#include "lab/policies/retroinfer/wave_sequence.h"

#include <algorithm>

namespace litecache::lab {

PageLists::~PageLists() {
  for (const auto& list : ids_) {
    for (const PageId page : list) pool_->DropReference(page);
  }
}

PageLists::PageLists(const PageLists& other)
    : pool_(other.pool_), length_(other.length_), ids_(other.ids_), pages_(other.pages_) {
  for (const auto& list : ids_) {
    for (const PageId page : list) pool_->AddReference(page);
  }
}

int64_t PageLists::Missing(int64_t length) const {
  return std::max<int64_t>(length - length_, 0) * static_cast<int64_t>(ids_.size());
}

void PageLists::AddShared(std::vector<PageId>* shared) const {
  for (const auto& list : ids_) {
    for (const PageId page : list) {
      if (pool_->references(page) > 1) shared->push_back(page);
    }
  }
}

void PageLists::Extend(int64_t length) {
  for (; length_ < length; ++length_) {
    for (size_t list = 0; list < ids_.size(); ++list) {
      ids_[list].push_back(pool_->Take());
      pages_[list].push_back(pool_->data(ids_[list].back()));
    }
  }
}

void PageLists::MakeOwn() {
  for (size_t list = 0; list < ids_.size(); ++list) {
    for (size_t i = 0; i < ids_[list].size(); ++i) {
      const PageId shared = ids_[list][i];
      if (pool_->references(shared) == 1) continue;
      const PageId own = pool_->Take();
      pool_->CopyPage(own, shared, pool_->page_bytes());
      pool_->DropReference(shared);
      ids_[list][i] = own;
      pages_[list][i] = pool_->data(own);
    }
  }
}

}  // namespace litecache::lab
