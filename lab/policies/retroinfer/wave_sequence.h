// The state of a policy retroinfer sequence besides its rows in the host store: the index and its
// growth, and device pages for the steady zone, the block cache and the execution buffer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kv/pages/page_pool.h"
#include "lab/namespaces.h"
#include "lab/policies/retroinfer/block_cache.h"
#include "lab/policies/retroinfer/wave_build_cpu.h"

namespace litecache::lab {

// Lists of pages, all of the same length.
class PageLists {
 public:
  PageLists(PagePool& pool, int64_t lists)
      : pool_(&pool), ids_(static_cast<size_t>(lists)), pages_(static_cast<size_t>(lists)) {}
  ~PageLists();
  // A copy shares the pages.
  PageLists(const PageLists& other);
  PageLists& operator=(const PageLists&) = delete;

  int64_t length() const { return length_; }  // pages per list
  // Number of pages that Extend() would take.
  int64_t Missing(int64_t length) const;
  // Appends the shared pages to `shared`: MakeOwn() will copy them (CopiesNeeded, page_pool.h).
  void AddShared(std::vector<PageId>* shared) const;
  // The pool must have reserved the pages.
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

  // A fork of a sequence whose build is complete: shares its steady zone and starts with an empty
  // cache.
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
  // A prompt's rows were added since the last decode step.
  bool prompt = false;
  // Clusters after those above, which are used from the step on in which their tokens have left the
  // recent window. Threads may still be working on them.
  std::vector<WavePart> pending;
  // The latest build; threads may still be working on it.
  std::unique_ptr<WaveBuild> build;

  // Number of tokens in a cluster in use.
  int32_t Size(int64_t list, int64_t cluster) const {
    const std::vector<int32_t>& of = begins[static_cast<size_t>(list)];
    const auto end = cluster + 1 < clusters ? of[static_cast<size_t>(cluster) + 1]
                                            : static_cast<int32_t>(indexed_end);
    return end - of[static_cast<size_t>(cluster)];
  }
  // End of the clustered tokens, in use or pending.
  int64_t clustered_end() const { return pending.empty() ? indexed_end : pending.back().end; }
  int64_t all_clusters() const {
    return pending.empty() ? clusters
                           : pending.back().first_cluster + pending.back().growth.clusters;
  }

  // ---- wave buffer ----
  std::vector<BlockCache> caches;  // [lists]
  // [lists] blocks; [kv_heads] blocks of the current layer.
  PageLists steady, cache, buffer;
  // Layers whose steady zone is up to date; cleared by a prompt's chunk.
  std::vector<uint8_t> filled;
};

}  // namespace litecache::lab
