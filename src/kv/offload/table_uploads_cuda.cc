#include "kv/offload/table_uploads_cuda.h"

#include <algorithm>

namespace litecache::kv::offload {
namespace {

constexpr size_t kLeastBytes = size_t{256} << 10;

}  // namespace

void TableUploads::Add(std::byte** target, std::byte* const* pages, size_t count) {
  changes_.push_back({target, pages_.size(), count});
  pages_.insert(pages_.end(), pages, pages + count);
}

void TableUploads::Send(Stream& stream) {
  if (empty()) return;
  const size_t bytes = pages_.size() * sizeof(std::byte*);
  if (pinned_.size() < bytes) {
    pinned_ = Buffer();
    pinned_ = host_.Allocate(std::max(2 * bytes, kLeastBytes));
  }
  auto** pinned = pinned_.as<std::byte*>();
  std::copy(pages_.begin(), pages_.end(), pinned);
  for (const Change& change : changes_) {
    copies_.Add(change.target, pinned + change.first, change.count * sizeof(std::byte*));
  }
  copies_.Send(stream);
  Clear();
}

void TableUploads::Flush() {
  for (const Change& change : changes_) {
    device_.Upload(change.target, pages_.data() + change.first, change.count * sizeof(std::byte*));
  }
  Clear();
}

void TableUploads::Clear() {
  changes_.clear();
  pages_.clear();
}

}  // namespace litecache::kv::offload
