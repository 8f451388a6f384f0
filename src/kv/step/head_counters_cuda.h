// Converts the kernels' counters for Cache::Heads().
#pragma once

#include <span>

#include "litecache/kv_stats.h"
#include "ops/slots/litecache_layer_cuda.h"

namespace litecache::kv {

// counters: one for each of `heads`.
inline void ReadCounters(const ops::cuda::DeviceHeadCounters* counters,
                         std::span<HeadCounters> heads) {
  for (size_t i = 0; i < heads.size(); ++i) {
    heads[i].lookups = counters[i].lookups;
    heads[i].hits = counters[i].hits;
    heads[i].rows_selected = counters[i].rows_selected;
    heads[i].rows_moved = counters[i].rows_moved;
    heads[i].similarity = counters[i].similarity;
  }
}

}  // namespace litecache::kv
