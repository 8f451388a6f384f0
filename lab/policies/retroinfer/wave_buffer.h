// The wave buffer in a decode step: finds the wanted clusters that are cached on the device,
// transfers the others, and updates the cache. CPU threads do lookups and moves, in parallel with
// the device's operations.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/background_threads.h"
#include "lab/namespaces.h"
#include "lab/policies/retroinfer/ops/clusters.h"
#include "lab/policies/retroinfer/shape.h"
#include "lab/policies/retroinfer/wave_sequence.h"
#include "ops/rows/move_rows.h"

namespace litecache::lab {

// One (sequence, KV head) of the current layer. Slots: rows of the block cache's blocks, then those
// of the execution buffer's, each block at a multiple of block_tokens.
struct WaveAccess {
  WaveSequence* sequence = nullptr;
  int64_t list = 0, head = 0;
  ops::PagedClusters clusters;
  ops::PagedRows store;
  std::span<const int32_t> ranked;  // clusters to attend, the best first

  // ---- results of Lookup ----
  int64_t retrieved = 0;  // the first of `ranked`, as many as fit the execution buffer
  std::vector<std::byte*> pages;
  std::vector<int32_t> slots;  // of all retrieved rows, one cluster after another
  int64_t hit_rows = 0;
  std::vector<int32_t> hits, misses, miss_blocks;  // clusters; blocks of each miss
  std::vector<int32_t> miss_rows, miss_slots;      // rows in the store; slots in the buffer
  // ---- of the update: rows that enter the cache ----
  std::vector<int32_t> admitted_from, admitted_to;  // slots

  ops::SlotRows Rows(const RetroShape& shape) const {
    return {pages.data(), shape.page_block_rows, shape.format};
  }
};

class WaveBuffer {
 public:
  WaveBuffer(const RetroShape& shape, int threads) : shape_(shape), threads_(threads) {}
  ~WaveBuffer() { Settle(); }

  // Returns `count` accesses to fill in, reusing their memory; earlier accesses are settled first.
  std::span<WaveAccess> Begin(size_t count);
  // Looks up all of them.
  void Lookup(Stream& stream);
  // Copies the missing rows into the execution buffer: starts, and waits for it.
  void StartTransfer();
  void WaitTransfer();
  // Updates the caches' LRU order and decides what they keep, in parallel with the attention.
  void StartUpdate();
  // After the attention: starts copying admitted rows from the execution buffer into the caches.
  void StartAdmission();
  // Returns when no work is running. Never throws: a cache whose update failed is emptied.
  void Settle() noexcept;

 private:
  void LookupOne(WaveAccess* access) const;
  void UpdateOne(WaveAccess* access) const;
  void ClearCaches();
  // Runs job(access) for all accesses, distributed over the threads.
  template <class Job>
  void Submit(const std::shared_ptr<TaskGroup>& group, const Job& job);

  const RetroShape& shape_;
  BackgroundThreads threads_;
  std::vector<WaveAccess> accesses_;
  size_t count_ = 0;
  std::shared_ptr<TaskGroup> transfers_ = std::make_shared<TaskGroup>();
  std::shared_ptr<TaskGroup> updates_ = std::make_shared<TaskGroup>();
  std::shared_ptr<TaskGroup> admissions_ = std::make_shared<TaskGroup>();
};

}  // namespace litecache::lab
