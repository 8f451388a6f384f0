// RULER's samples through one system of a checkpoint.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "litecache/engine.h"

namespace litecache::bench::papers {

struct AccuracyRun {
  std::string model;
  EngineOptions engine;  // with the system's KV options
  int64_t length = 0;
  std::vector<std::string> tasks;
  int64_t count = 0;  // samples a task
};

// {"average", "tasks": {name: score}, "hit_ratio" where there were lookups, "moved_per_token"},
// scores in percent. Throws what loading and the samples' generation throw, Error where samples
// failed.
nlohmann::ordered_json RunAccuracy(const AccuracyRun& run);

}  // namespace litecache::bench::papers
