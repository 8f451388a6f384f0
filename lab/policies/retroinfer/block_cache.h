// Which clusters of one (sequence, layer, KV head) are in its blocks on the device: the LRU list of
// RetroInfer's wave buffer. Knows nothing of rows, pages or threads.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace litecache::kv {

class BlockCache {
 public:
  static constexpr int32_t kNone = -1;

  // Neither ever falls. Clusters keep their blocks.
  void Resize(int64_t clusters, int64_t blocks);

  // Nothing is cached.
  void Clear();

  int64_t clusters() const { return static_cast<int64_t>(first_.size()); }
  int64_t blocks() const { return static_cast<int64_t>(next_block_.size()); }

  // The first of a cluster's blocks, in the order of its rows, and the one behind a block; kNone
  // for a cluster that is not cached, and behind the last.
  int32_t First(int32_t cluster) const { return first_[static_cast<size_t>(cluster)]; }
  int32_t Next(int32_t block) const { return next_block_[static_cast<size_t>(block)]; }

  // Of what Update() will ask of a cluster: begins to bring it nearer.
  void Prefetch(int32_t cluster) const {
    __builtin_prefetch(&first_[static_cast<size_t>(cluster)]);
    __builtin_prefetch(&links_[static_cast<size_t>(cluster)]);
  }

  // One query's clusters, the best first. Those that are cached become the most recently used ones,
  // the best in front; then those of `misses` are admitted in their order as long as they all fit
  // together - the first that does not ends it -, in the place of the least recently used ones.
  // block_counts[i]: blocks that misses[i] takes. Returns how many were admitted; each one is in
  // front of those before it. dropped: where not null, those that made room are appended.
  int64_t Update(std::span<const int32_t> hits, std::span<const int32_t> misses,
                 std::span<const int32_t> block_counts, std::vector<int32_t>* dropped = nullptr);

  // Cached clusters, the most recently used first.
  std::vector<int32_t> Contents() const;

 private:
  struct Links {
    int32_t before = kNone, behind = kNone;  // clusters, in order of use
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

}  // namespace litecache::kv
