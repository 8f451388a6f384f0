// Measurements as JSON, for `litecache bench --json` and for the suite.
#pragma once

#include <nlohmann/json.hpp>

#include "bench/runner.h"

namespace litecache::bench {

// One decode step; `steps`: number of timed steps. graphs: whether a GPU's steps were replayed as
// graphs.
nlohmann::ordered_json DecodeJson(const Measurement& m, int64_t steps, bool graphs);
nlohmann::ordered_json PrefillJson(const Measurement& m);
// Milliseconds per section, by name.
nlohmann::ordered_json BreakdownJson(const Breakdown& breakdown);

// Number of rows transferred to the device per decode step.
double RowsMoved(const Measurement& m, int64_t steps);
// The hit ratio of lookups; 0 if there were none.
double HitRatio(const kv::Stats& stats);
// The share of checked predictions that were corrected, or 0 where there were none.
double CorrectedRatio(const kv::Stats& stats);

}  // namespace litecache::bench
