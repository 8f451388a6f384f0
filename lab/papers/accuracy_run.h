// Runs RULER's samples on one system of a checkpoint.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "litecache/engine.h"

namespace litecache::bench::papers {

struct AccuracyRun {
  std::string model;
  EngineOptions engine;  // including the system's KV options
  int64_t length = 0;
  std::vector<std::string> tasks;
  int64_t count = 0;  // samples per task
};

// Makes the samples of a length and encodes their prompts once for all systems: both take longer
// than a small model's answers on a GPU.
class AccuracyRunner {
 public:
  AccuracyRunner();
  ~AccuracyRunner();

  // {"average", "tasks": {name: score}, "hit_ratio" if there were lookups, "moved_per_token"},
  // scores in percent. Throws what loading and the samples' generation throw, and Error if samples
  // failed.
  nlohmann::ordered_json Run(const AccuracyRun& run);

 private:
  struct Prepared;
  const Prepared& Prepare(const AccuracyRun& run);

  std::unique_ptr<Prepared> prepared_;
};

}  // namespace litecache::bench::papers
