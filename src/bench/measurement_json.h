// Measurements as JSON: what `litecache bench --json` prints, and what the suite keeps.
#pragma once

#include <nlohmann/json.hpp>

#include "bench/runner.h"

namespace litecache::bench {

// One decode step; `steps`: how many were timed. graphs: a GPU's steps were replayed as graphs.
nlohmann::ordered_json DecodeJson(const Measurement& m, int64_t steps, bool graphs);
nlohmann::ordered_json PrefillJson(const Measurement& m);
// Milliseconds per section, by name.
nlohmann::ordered_json BreakdownJson(const Breakdown& breakdown);

// Rows that a decode step brought to the device.
double RowsMoved(const Measurement& m, int64_t steps);
// The hit ratio of lookups; 0 where there were none.
double HitRatio(const kv::Stats& stats);

}  // namespace litecache::bench
