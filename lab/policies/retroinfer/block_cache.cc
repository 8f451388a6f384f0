#include "lab/policies/retroinfer/block_cache.h"

#include "base/error.h"

namespace litecache::lab {

void BlockCache::Resize(int64_t clusters, int64_t blocks) {
  LC_CHECK(clusters >= this->clusters() && blocks >= this->blocks());
  first_.resize(static_cast<size_t>(clusters), kNone);
  links_.resize(static_cast<size_t>(clusters));
  const auto before = static_cast<int32_t>(next_block_.size());
  next_block_.resize(static_cast<size_t>(blocks), kNone);
  free_.reserve(next_block_.size());
  for (auto block = static_cast<int32_t>(blocks) - 1; block >= before; --block) {
    free_.push_back(block);
  }
}

void BlockCache::Clear() {
  while (back_ != kNone) EvictLast();
}

void BlockCache::Unlink(int32_t cluster) {
  const Links links = links_[static_cast<size_t>(cluster)];
  (links.before == kNone ? front_ : links_[static_cast<size_t>(links.before)].behind) =
      links.behind;
  (links.behind == kNone ? back_ : links_[static_cast<size_t>(links.behind)].before) = links.before;
}

void BlockCache::PushFront(int32_t cluster) {
  links_[static_cast<size_t>(cluster)] = {kNone, front_};
  (front_ == kNone ? back_ : links_[static_cast<size_t>(front_)].before) = cluster;
  front_ = cluster;
}

void BlockCache::EvictLast() {
  const int32_t cluster = back_;
  LC_CHECK(cluster != kNone);
  Unlink(cluster);
  int32_t& first = first_[static_cast<size_t>(cluster)];
  for (int32_t block = first; block != kNone; block = Next(block)) free_.push_back(block);
  first = kNone;
}

int64_t BlockCache::Update(std::span<const int32_t> hits, std::span<const int32_t> misses,
                           std::span<const int32_t> block_counts, std::vector<int32_t>* dropped) {
  for (size_t i = hits.size(); i-- > 0;) {
    Unlink(hits[i]);
    PushFront(hits[i]);
  }
  size_t admitted = 0;
  int64_t needed = 0;
  while (admitted < misses.size() && needed + block_counts[admitted] <= blocks()) {
    needed += block_counts[admitted++];
  }
  while (static_cast<int64_t>(free_.size()) < needed) {
    if (dropped != nullptr) dropped->push_back(back_);
    EvictLast();
  }
  for (size_t i = 0; i < admitted; ++i) {
    int32_t* link = &first_[static_cast<size_t>(misses[i])];
    for (int32_t n = 0; n < block_counts[i]; ++n) {
      *link = free_.back();
      free_.pop_back();
      link = &next_block_[static_cast<size_t>(*link)];
    }
    *link = kNone;
    PushFront(misses[i]);
  }
  return static_cast<int64_t>(admitted);
}

std::vector<int32_t> BlockCache::Contents() const {
  std::vector<int32_t> contents;
  for (int32_t cluster = front_; cluster != kNone;
       cluster = links_[static_cast<size_t>(cluster)].behind) {
    contents.push_back(cluster);
  }
  return contents;
}

}  // namespace litecache::lab
