// What policy litecache counts.
#pragma once

#include <cstdint>
#include <vector>

#include "litecache/kv_stats.h"

namespace litecache::kv {

struct Counters {
  Stats stats;                      // without memory
  std::vector<HeadCounters> heads;  // [layers][kv_heads]
};

}  // namespace litecache::kv
