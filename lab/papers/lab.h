// Measures the suite's cells on this machine.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "bench/machine.h"
#include "bench/subject.h"
#include "device/keep_pinned.h"
#include "device/machine.h"
#include "lab/papers/accuracy_run.h"
#include "lab/papers/cell.h"
#include "lab/trace/trace.h"
#include "litecache/engine.h"

namespace litecache::bench::papers {

struct LabOptions {
  std::string device = "auto";
  int threads = 0;
  // Budgets in bytes, as in SubjectOptions.
  uint64_t memory = 0;
  kv::TierBytes caps;
  int64_t prefill_chunk = 512;
  int64_t prefill_repeats = 1;
  int64_t decode_steps = 16;
  uint64_t seed = 1;
  int64_t longest = 0;  // tokens of the longest context of any cell
  // Forced on policy litecache if a cell does not set them.
  double hit_ratio = 0.8, overlap = 0.7;
  // Replaces the results of lookups and selections unless a cell forces others; null: none.
  std::shared_ptr<const lab::Trace> trace;
  // Rates of this machine, if they were measured before.
  std::optional<MachineRates> rates;
  std::vector<std::string> accuracy_tasks;
  int64_t max_batch = 64;  // sequences that are answered together
};

class Lab {
 public:
  explicit Lab(const LabOptions& options);
  ~Lab();

  std::string machine() const;  // name of the compute device
  // The measured rates of the machine, as text. Empty before the first shape was loaded.
  std::string rates() const;
  const std::optional<MachineRates>& measured_rates() const { return rates_; }

  // The measurement, or {"skipped": why} if the machine, the engine or the memory does not allow
  // it. Throws errors after which nothing further can be measured (DeviceError).
  nlohmann::ordered_json Measure(const Cell& cell,
                                 const std::function<void(int64_t done, int64_t total)>& progress);

 private:
  struct Loaded;
  Loaded& Load(const std::string& shape);
  nlohmann::ordered_json MeasureSpeed(
      const Cell& cell, const std::function<void(int64_t done, int64_t total)>& progress);
  nlohmann::ordered_json MeasureAccuracy(const Cell& cell);
  // Describes what was forced on its lookups; empty: nothing.
  std::string Force(const Cell& cell, kv::CachePlan* plan) const;

  LabOptions options_;
  Machine machine_;
  KeepPinned keep_pinned_;  // reuses one cell's host store for the next one
  std::unique_ptr<Stream> stream_;
  std::optional<MachineRates> rates_;
  std::unique_ptr<Loaded> loaded_;
  AccuracyRunner accuracy_;
};

}  // namespace litecache::bench::papers
