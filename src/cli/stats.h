// The statistics at the end of a run: a compact summary as text, and the same as JSON.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/collect.h"
#include "cli/kv_report.h"

namespace litecache::cli {

// Memory of a run.
struct MemoryUse {
  KvReport kv;
  uint64_t peak_bytes = 0;  // of the whole process
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
