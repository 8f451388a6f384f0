// /stats: the state of the engine in numbers, for a page that draws them.
#pragma once

#include <cstdint>
#include <span>

#include "litecache/kv_stats.h"
#include "server/api/json.h"
#include "server/api/model.h"

namespace litecache::server {

Json KvStatsJson(const kv::Stats& kv);
// Counters of [layers][kv_heads] heads.
Json HeadsJson(std::span<const kv::HeadCounters> heads, int64_t layers);

// seconds: since the server started. requests: generating requests without an answer so far,
// including waiting ones.
Json StatsJson(const ServedModel& model, double seconds, int64_t requests);

}  // namespace litecache::server
