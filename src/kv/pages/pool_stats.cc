#include "kv/pages/pool_stats.h"

namespace litecache::kv {

void AddPools(const PagePool& device, const PagePool* host, Stats* stats) {
  const auto bytes = [&](int64_t (PagePool::*pages)() const) {
    const auto of = [&](const PagePool& pool) {
      return static_cast<uint64_t>((pool.*pages)()) * pool.page_bytes();
    };
    return TierBytes{.device = of(device), .host = host != nullptr ? of(*host) : 0};
  };
  stats->peak = bytes(&PagePool::peak);
  stats->used = bytes(&PagePool::used);
  stats->provided = bytes(&PagePool::provided);
  stats->capacity = bytes(&PagePool::capacity);
}

void AddLookups(std::span<const HeadCounters> heads, Stats* stats) {
  for (const HeadCounters& head : heads) {
    stats->lookups += head.lookups;
    stats->hits += head.hits;
    stats->verified += head.verified;
    stats->corrected += head.corrected;
  }
}

}  // namespace litecache::kv
