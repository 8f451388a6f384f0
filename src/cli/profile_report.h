// The output of `litecache profile`.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "profile/profiler.h"

namespace litecache::cli {

struct ProfileReportOptions {
  double keep = 0.99;  // share of the attention mass that thresholds are fitted to
};

// Tables: one row per layer; expected results of the thresholds; recall; phases.
std::string ProfileText(const profile::ProfilerResult& result, const ProfileReportOptions& options);
nlohmann::ordered_json ProfileJson(const profile::ProfilerResult& result,
                                   const ProfileReportOptions& options);

}  // namespace litecache::cli
