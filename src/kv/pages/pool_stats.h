// The statistics that pools and heads contribute under any policy.
#pragma once

#include <span>

#include "kv/pages/page_pool.h"
#include "litecache/kv_stats.h"

namespace litecache::kv {

// Fills in the used, peak, allocated and allowed bytes of both tiers; host: null for a policy
// without a host store.
void AddPools(const PagePool& device, const PagePool* host, Stats* stats);

// Adds the heads' lookups, hits, checks and corrections.
void AddLookups(std::span<const HeadCounters> heads, Stats* stats);

}  // namespace litecache::kv
