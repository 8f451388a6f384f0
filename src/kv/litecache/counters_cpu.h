// The counters of policy litecache.
#pragma once

#include <cstdint>
#include <vector>

#include "litecache/kv_stats.h"

namespace litecache::kv {

struct Counters {
  Stats stats;                      // without memory figures
  std::vector<HeadCounters> heads;  // [layers][kv_heads]
};

}  // namespace litecache::kv
