// Policy pqcache's state of its sequences on either device: pages of both tiers, the index of a
// prompt, and the blocks that each layer caches.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/background_threads.h"
#include "kv/cache.h"
#include "kv/pages/page_pool.h"
#include "kv/pages/sequence_table.h"
#include "lab/namespaces.h"
#include "lab/policies/pqcache/index.h"
#include "lab/policies/pqcache/lfu.h"
#include "lab/policies/pqcache/shape.h"
#include "litecache/kv_options.h"
#include "ops/common/row_format.h"

namespace litecache::lab::pqcache {

struct LayerState {
  bool filled = false;  // whether window and codes have been filled
  Lfu blocks;
  int64_t counted_at = -1;  // the past of the step counted last: a repeated step is counted once

  // After a step: counts [(selected rows, block)] of whole blocks. The fullest ones, as many as the
  // cache holds, count as used. Returns the newly admitted ones.
  std::vector<int64_t> CountUses(int64_t past, std::vector<std::pair<int64_t, int64_t>> counts);
};

struct Sequence {
  bool shared = false;  // has been forked, or is a fork
  // From the first token after a prompt on:
  bool ready = false;
  int64_t rows = 0;                             // number of recent rows, and of top rows
  std::shared_ptr<Index> index;                 // null: every row is attended
  SequenceId codes = 0, window = 0, cache = 0;  // ids in these tables
  std::vector<PageId> codebook_ids;
  std::vector<std::byte*> codebooks;
  std::vector<LayerState> layers;
};

class Sequences {
 public:
  // host: the device of the store. settle: waits for the cache's own operations on a sequence.
  Sequences(Device& device, Device& host, const Shape& shape, const KvOptions& options,
            const TierBytes& budget, std::function<void(SequenceId)> settle);
  ~Sequences();
  Sequences(const Sequences&) = delete;
  Sequences& operator=(const Sequences&) = delete;

  SequenceId Create();
  SequenceId Fork(SequenceId parent);
  void Release(SequenceId id);
  Sequence& Get(SequenceId id) { return sequences_.at(id); }
  const Sequence& Get(SequenceId id) const { return sequences_.at(id); }

  // Space for a step's sequences plus `staging` pages: reserved by Reserve(), which throws
  // CapacityError without changing anything, then taken by Grow(). Call Prepare() before, for the
  // sequences that decode; it does what does not depend on memory.
  void Prepare(const StepSequence& sequence);
  void Reserve(const Step& step, int64_t staging);
  void Grow(const Step& step);
  // An index for the prompt that ends with this chunk; null if it is not known to end, or too
  // short.
  std::shared_ptr<Index> NewIndex(const StepSequence& sequence) const;
  // Clusters a layer's keys [sink, tokens). ready: see Index::Start.
  void StartLayer(SequenceId id, int64_t tokens, int64_t layer, const Index::Ready& ready,
                  Index* index);
  // Makes the step's tokens part of the sequence. index: of a prompt that has ended.
  void Commit(const StepSequence& sequence, std::shared_ptr<Index> index);

  // Number of pages in a list for its window, and for its cached blocks.
  int64_t WindowPages(const Sequence& sequence) const { return window_.Blocks(sequence.window); }
  int64_t CachePages(const Sequence& sequence) const { return cache_.Blocks(sequence.cache); }

  ops::PagedRows RowsOf(const SequenceTable& table, SequenceId id, int64_t layer,
                        int64_t head) const {
    return {table.Lists(id)[shape_.List(layer, head)], shape_.pages.page_tokens, shape_.format};
  }
  ops::PagedMetadata CodesOf(const Sequence& sequence, int64_t layer, int64_t head) const {
    return {codes_.Lists(sequence.codes)[shape_.List(layer, head)], shape_.code_tokens};
  }
  float* Codebook(const Sequence& sequence, int64_t layer, int64_t head) const;
  int64_t WindowSlot(const Sequence& sequence, int64_t token) const {
    return token < shape_.sink ? token : shape_.sink + token % (sequence.rows + 1);
  }

  void AllocateAhead(const TierBytes& bytes) {
    device_.AllocateAhead(bytes.device);
    host_.AllocateAhead(bytes.host);
  }
  PagePool& device() { return device_; }
  const PagePool& device() const { return device_; }
  const PagePool& host() const { return host_; }
  const SequenceTable& store() const { return store_; }    // [layers][kv_heads], as in all tables
  const SequenceTable& codes() const { return codes_; }    // lengths: encoded tokens
  const SequenceTable& window() const { return window_; }  // rows: Shape::WindowSlots()
  const SequenceTable& cache() const { return cache_; }    // rows: slots of the cached blocks

 private:
  void Settle(SequenceId id, Sequence* sequence);
  void Reset(SequenceId id, Sequence* sequence);

  const Shape& shape_;
  const int64_t iterations_;
  std::function<void(SequenceId)> settle_;
  PagePool device_, host_;
  SequenceTable store_, codes_, window_, cache_;
  std::unordered_map<SequenceId, Sequence> sequences_;
  // Scratch.
  std::vector<SequenceTable::Growth> store_growth_, codes_growth_, window_growth_, cache_growth_;
  BackgroundThreads clustering_;
};

}  // namespace litecache::lab::pqcache
