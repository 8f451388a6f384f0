// The clusters of one (sequence, layer, KV head) that are cached in blocks on the device: the LRU
// list of RetroInfer's wave buffer. Independent of rows, pages and threads.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lab/namespaces.h"

namespace litecache::lab {

class BlockCache {
 public:
  static constexpr int32_t kNone = -1;

  // Neither number may decrease. Clusters keep their blocks.
  void Resize(int64_t clusters, int64_t blocks);

  // Empties the cache.
  void Clear();

  int64_t clusters() const { return static_cast<int64_t>(first_.size()); }
  int64_t blocks() const { return static_cast<int64_t>(next_block_.size()); }

  // The first of a cluster's blocks, in the order of its rows, and the successor of a block; kNone
  // for a cluster that is not cached, and after the last block.
  int32_t First(int32_t cluster) const { return first_[static_cast<size_t>(cluster)]; }
  int32_t Next(int32_t block) const { return next_block_[static_cast<size_t>(block)]; }

  // Prefetches the data of a cluster that Update() will access.
  void Prefetch(int32_t cluster) const {
    __builtin_prefetch(&first_[static_cast<size_t>(cluster)]);
    __builtin_prefetch(&links_[static_cast<size_t>(cluster)]);
  }

  // Processes one query's clusters, the best first. Cached clusters become the most recently used
  // ones, the best in front. Then `misses` are admitted in their order, replacing the least
  // recently used ones, until one does not fit together with those before it. block_counts[i]:
  // blocks of misses[i]. Returns the number admitted; each is placed in front of those before it.
  // dropped: if not null, receives the evicted clusters.
  int64_t Update(std::span<const int32_t> hits, std::span<const int32_t> misses,
                 std::span<const int32_t> block_counts, std::vector<int32_t>* dropped = nullptr);

  // Cached clusters, the most recently used first.
  std::vector<int32_t> Contents() const;

 private:
  struct Links {
    int32_t before = kNone, behind = kNone;  // neighbouring clusters in LRU order
  };
  void Unlink(int32_t cluster);
  void PushFront(int32_t cluster);
  void EvictLast();

  std::vector<int32_t> first_;       // [clusters] block
  std::vector<Links> links_;         // [clusters]
  std::vector<int32_t> next_block_;  // [blocks]
  std::vector<int32_t> free_;        // blocks
  int32_t front_ = kNone, back_ = kNone;
};

}  // namespace litecache::lab
