// The numbers at the end: one compact summary for people, the same as JSON.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/collect.h"

namespace litecache::cli {

// Memory of a run.
struct MemoryUse {
  uint64_t kv_bytes = 0;           // in use at the fullest moment seen
  uint64_t kv_capacity = 0;        // budget of the KV cache
  std::string kv_policy = "full";  // what the cache keeps
  uint64_t peak_bytes = 0;         // the whole process
};

// Largest resident memory of this process so far, in bytes.
uint64_t PeakMemory();

// The summary's lines, without colour. `seconds`: from the first submit to the last token.
std::string Summary(const std::vector<RequestResult>& results, double seconds,
                    const MemoryUse& memory);

// The "stats" object of one sample.
nlohmann::ordered_json StatsJson(const RequestResult& result, const SampleResult& sample,
                                 const MemoryUse& memory);

}  // namespace litecache::cli
