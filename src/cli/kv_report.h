// What the KV cache held and transferred, as text and as JSON.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "litecache/engine.h"

namespace litecache::cli {

struct KvReport {
  MemoryPlan plan;
  EngineStats stats;

  // Lines without colour: tiers; for policies with lookups also the hit ratio, rows moved and
  // resident heads.
  std::string Text() const;
  nlohmann::ordered_json Json() const;
};

// hits / lookups, or 0 where there were none.
double HitRatio(uint64_t hits, uint64_t lookups);

}  // namespace litecache::cli
