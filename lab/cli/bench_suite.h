// `litecache bench --suite`: flags to a run of the suite.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/options.h"
#include "lab/trace/trace.h"

namespace litecache::cli {

// What of bench's own flags a suite takes.
struct BenchSuiteRequest {
  std::string shape;                       // in the place of the papers'; or --model
  std::vector<int64_t> batches, contexts;  // in the place of the papers'; empty: those
  std::vector<int64_t> accuracy_contexts;  // in the place of the suite's or `contexts`' last one
  std::optional<double> hit_ratio, overlap;
  std::shared_ptr<const kv::Trace> trace;  // null: none
  std::string trace_file;
  uint64_t seed = 1;
  int64_t steps = 0;    // 0: the suite's
  int64_t repeats = 0;  // of prefills; 0: one
};

struct BenchSuiteFlags {
  std::string suite;
  bool quick = false;
  std::string output = "papers";
  std::string experiments;
  std::vector<std::string> systems;
  std::string accuracy_model;
  int64_t accuracy_count = 0;
  std::string accuracy_contexts;
  double time_limit = -1;

  void Declare(CLI::App& app);
  bool wanted() const { return !suite.empty(); }
  // Returns the exit code.
  int Run(const EngineFlags& flags, const BenchSuiteRequest& request) const;
};

}  // namespace litecache::cli
