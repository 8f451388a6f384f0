// The wave buffer's part of a decode step: which of the wanted clusters are cached on the device,
// the transfer of the others, and what the cache keeps of them. Lookup and moves are CPU threads'
// work; the device's operations run beside them.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/background_threads.h"
#include "lab/policies/retroinfer/ops/clusters.h"
#include "lab/policies/retroinfer/shape.h"
#include "lab/policies/retroinfer/wave_sequence.h"
#include "ops/rows/move_rows.h"

namespace litecache::kv {

// One (sequence, KV head) of the layer that attends. Slots: rows of the block cache's blocks, then
// those of the execution buffer's, each block from a multiple of block_tokens on.
struct WaveAccess {
  WaveSequence* sequence = nullptr;
  int64_t list = 0, head = 0;
  ops::PagedClusters clusters;
  ops::PagedRows store;
  std::span<const int32_t> ranked;  // clusters to attend, the best first

  // ---- results of Lookup ----
  int64_t retrieved = 0;  // of `ranked`, from its beginning: what the execution buffer has room for
  std::vector<std::byte*> pages;
  std::vector<int32_t> slots;  // of all retrieved rows, cluster after cluster
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

  // `count` accesses to fill in, whose memory is used again; what was accessed before is settled.
  std::span<WaveAccess> Begin(size_t count);
  // Looks up all of them.
  void Lookup(Stream& stream);
  // Brings the rows that missed into the execution buffer: begins, and waits for it.
  void StartTransfer();
  void WaitTransfer();
  // Brings the caches' order of use up to date and decides what they keep, beside the attention.
  void StartUpdate();
  // After the attention: begins to copy what is kept from the execution buffer into the caches.
  void StartAdmission();
  // Returns when nothing is at work. Never throws: a cache whose update failed is emptied.
  void Settle() noexcept;

 private:
  void LookupOne(WaveAccess* access) const;
  void UpdateOne(WaveAccess* access) const;
  void ClearCaches();
  // Runs job(access) for all accesses, spread over the threads.
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

}  // namespace litecache::kv
