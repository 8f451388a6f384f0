// What policy retroinfer keeps of a sequence beside its rows in the host store: the index and its
// growth, and pages of the device for the steady zone, the block cache and the execution buffer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kv/pages/page_pool.h"
#include "lab/policies/retroinfer/block_cache.h"
#include "lab/policies/retroinfer/wave_build_cpu.h"

namespace litecache::kv {

// Equally long lists of pages.
class PageLists {
 public:
  PageLists(PagePool& pool, int64_t lists)
      : pool_(&pool), ids_(static_cast<size_t>(lists)), pages_(static_cast<size_t>(lists)) {}
  ~PageLists();
  // A copy shares the pages.
  PageLists(const PageLists& other);
  PageLists& operator=(const PageLists&) = delete;

  int64_t length() const { return length_; }  // pages a list
  // Pages that Extend() would take.
  int64_t Missing(int64_t length) const;
  // Appends shared pages to `shared`: MakeOwn() will copy them (CopiesNeeded, page_pool.h).
  void AddShared(std::vector<PageId>* shared) const;
  // The pool must have the pages in reserve.
  void Extend(int64_t length);
  void MakeOwn();

  std::span<std::byte* const> Pages(int64_t list) const {
    return pages_[static_cast<size_t>(list)];
  }

 private:
  PagePool* pool_;
  int64_t length_ = 0;
  std::vector<std::vector<PageId>> ids_;
  std::vector<std::vector<std::byte*>> pages_;
};

struct WaveSequence {
  WaveSequence(const RetroShape& shape, PagePool& device)
      : begins(static_cast<size_t>(shape.lists)),
        caches(static_cast<size_t>(shape.lists)),
        steady(device, shape.lists),
        cache(device, shape.lists),
        buffer(device, shape.layout.kv_heads),
        filled(static_cast<size_t>(shape.layout.layers), 0) {}

  // A fork of a sequence whose build is done: shares its steady zone, begins with an empty cache.
  WaveSequence(const RetroShape& shape, PagePool& device, const WaveSequence& parent)
      : indexed_end(parent.indexed_end),
        clusters(parent.clusters),
        nprobe(parent.nprobe),
        estimated(parent.estimated),
        begins(parent.begins),
        prompt(parent.prompt),
        pending(parent.pending),
        caches(parent.caches.size()),
        steady(parent.steady),
        cache(device, shape.lists),
        buffer(device, shape.layout.kv_heads),
        filled(parent.filled) {
    for (BlockCache& fresh : caches) fresh.Resize(clusters, shape.CacheBlocks(nprobe));
  }
  virtual ~WaveSequence() = default;

  // ---- index ----
  int64_t indexed_end = 0;  // tokens [sink, indexed_end) are clustered
  int64_t clusters = 0;
  int64_t nprobe = 0;
  int64_t estimated = 0;
  std::vector<std::vector<int32_t>> begins;  // [lists][clusters]: first row in the store
  bool prompt = false;                       // rows of a prompt since the last decode step
  // Clusters behind those above, which are used from the step on where their tokens have left the
  // recent window. Threads may still be at work on them.
  std::vector<WavePart> pending;
  // The last build, which threads may still be at work on.
  std::unique_ptr<WaveBuild> build;

  // Tokens of a cluster that is used.
  int32_t Size(int64_t list, int64_t cluster) const {
    const std::vector<int32_t>& of = begins[static_cast<size_t>(list)];
    const auto end = cluster + 1 < clusters ? of[static_cast<size_t>(cluster) + 1]
                                            : static_cast<int32_t>(indexed_end);
    return end - of[static_cast<size_t>(cluster)];
  }
  // Ends of what is clustered, used or pending.
  int64_t clustered_end() const { return pending.empty() ? indexed_end : pending.back().end; }
  int64_t all_clusters() const {
    return pending.empty() ? clusters
                           : pending.back().first_cluster + pending.back().growth.clusters;
  }

  // ---- wave buffer ----
  std::vector<BlockCache> caches;  // [lists]
  // [lists] blocks; [kv_heads] blocks of the layer that attends.
  PageLists steady, cache, buffer;
  // Layers whose steady zone holds what belongs there; not after a prompt's chunk.
  std::vector<uint8_t> filled;
};

}  // namespace litecache::kv
