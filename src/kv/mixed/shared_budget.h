// One budget of device memory for the pools of several caches.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "kv/pages/page_pool.h"

namespace litecache::kv::mixed {

// Each pool was created with the whole budget. What a pool uses is taken from the others' budgets,
// and memory that it has without using it is returned once the others need it.
class SharedBudget {
 public:
  // pools: without null pointers; they must outlive this object.
  SharedBudget(uint64_t bytes, std::vector<PagePool*> pools)
      : bytes_(bytes), pools_(std::move(pools)) {}

  // Gives every pool what the others do not use.
  void Divide() {
    const uint64_t used = Sum(&PagePool::used);
    for (PagePool* pool : pools_) {
      const uint64_t others = used - Bytes(*pool, pool->used());
      pool->Limit(bytes_ - std::min(bytes_, others));
    }
  }
  void ReleaseFree() {
    for (PagePool* pool : pools_) pool->ReleaseFree();
  }
  // Whether the pools have more memory than the budget, used or free.
  bool exceeded() const { return Sum(&PagePool::provided) > bytes_; }

 private:
  static uint64_t Bytes(const PagePool& pool, int64_t pages) {
    return static_cast<uint64_t>(pages) * pool.page_bytes();
  }
  uint64_t Sum(int64_t (PagePool::*pages)() const) const {
    uint64_t bytes = 0;
    for (const PagePool* pool : pools_) bytes += Bytes(*pool, (pool->*pages)());
    return bytes;
  }

  const uint64_t bytes_;
  const std::vector<PagePool*> pools_;
};

}  // namespace litecache::kv::mixed
