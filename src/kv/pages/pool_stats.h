// What the pools and heads of any policy add to its statistics.
#pragma once

#include <span>

#include "kv/pages/page_pool.h"
#include "litecache/kv_stats.h"

namespace litecache::kv {

// Fills in bytes used, at most used, provided and allowed of both tiers; host: null for a policy
// without a host store.
void AddPools(const PagePool& device, const PagePool* host, Stats* stats);

// Adds the heads' lookups and hits.
void AddLookups(std::span<const HeadCounters> heads, Stats* stats);

}  // namespace litecache::kv
