// Times prefill and decode steps of a decoder.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <random>
#include <span>
#include <vector>

#include "bench/cost.h"
#include "bench/machine.h"
#include "device/device.h"
#include "device/sections.h"
#include "kv/cache_plan.h"
#include "model/decoder.h"

namespace litecache::bench {

// The source of the KV rows for a decode measurement.
enum class Fill {
  kPrefill,    // the model processes a prompt of that length for every sequence
  kSynthetic,  // random rows are stored: the same memory, without the model's work
};

// Untimed decode steps in which buffers are allocated, threads wake and a graph is captured.
inline constexpr int64_t kWarmUpSteps = 4;
inline constexpr int64_t kBreakdownSteps = 12;

struct RunOptions {
  int64_t prefill_chunk = 512;
  int64_t prefill_repeats = 3;
  int64_t decode_steps = 32;  // timed, after kWarmUpSteps untimed ones
  Fill fill = Fill::kSynthetic;
  uint64_t seed = 1;       // of tokens and synthetic rows
  bool graphs = true;      // replay a GPU's decode steps
  int64_t step_rows = 0;   // a decode step of more sequences is divided; 0: it is not
  bool breakdown = false;  // time the sections of kBreakdownSteps further steps
  // Tokens fed in a loop, each sequence starting at another position; empty: random ones. Policies
  // that reuse rows need a text: queries of random tokens are unrelated.
  std::vector<int32_t> tokens;
};

// The time of a decode step by section.
struct Breakdown {
  // Seconds per step; with `launch` they add up to the measurement's. Unmarked time is in kRest.
  std::array<double, kSections> seconds{};
  // Time before a step's first operation and after its last one, in which the host launches the
  // step and waits for its end.
  double launch = 0;
  int64_t marks = 0;        // per step; 0: not measured
  double mark_seconds = 0;  // the cost of one mark, which has been subtracted
};

struct Measurement {
  int64_t batch = 0;
  int64_t context = 0;
  double seconds = 0;  // median: of a whole prefill, or of one decode step
  double slowest = 0;  // the slowest prefill or step
  double spread = 0;   // (slowest - fastest) / median
  Cost cost;
  double floor_seconds = 0;  // the minimum by the machine's rates
  // For a decode measurement after real prompts: the time of the prompts, and of all steps
  // together, including kWarmUpSteps.
  double prompts_seconds = 0, steps_seconds = 0;
  // For a decode measurement, over its timed steps.
  kv::Stats kv;
  model::ExpertCounts experts;  // those in host memory
  double cpu_seconds = 0;       // per step: all threads of the process, user and system time
  Breakdown breakdown;
  uint64_t device_memory = 0;  // in use on a GPU by all processes; 0: on a CPU
};

// Reports how much of a measurement is done; for progress bars.
using Progress = std::function<void(int64_t done, int64_t total)>;

class Runner {
 public:
  Runner(Device& device, Stream& stream, model::Decoder& decoder, const MachineRates& rates,
         const RunOptions& options);

  // Throws InvalidArgument if `context` exceeds the model's.
  Measurement Prefill(const kv::CachePlan& plan, int64_t context, const Progress& progress);
  // Apply to the following measurements.
  void UseGraphs(bool use) { options_.graphs = use; }
  void LimitStepRows(int64_t rows) { options_.step_rows = rows; }
  // Times steps at `context` tokens and slightly more. The logits of every sequence are computed,
  // but tokens are not sampled. The floor's bytes are those of the weights and what the cache has
  // read, scored and moved.
  Measurement Decode(const kv::CachePlan& plan, int64_t batch, int64_t context,
                     const Progress& progress);

  // Tokens by which a sequence grows beyond its context during a measurement.
  int64_t MoreTokens() const {
    return options_.decode_steps + kWarmUpSteps + (options_.breakdown ? kBreakdownSteps : 0);
  }
  // KV memory that a decode measurement takes.
  kv::TierBytes DecodeKvBytes(const kv::CachePlan& plan, int64_t batch, int64_t context) const;

 private:
  // step_seconds: the time of a step, measured before.
  Breakdown MeasureSections(const std::function<double()>& step, double step_seconds);
  void CheckContext(int64_t tokens) const;
  // Processes prompts of `tokens` tokens, one chunk per step, in several sequences as an engine
  // does.
  void FillByPrefill(kv::Cache& cache, std::span<const kv::SequenceId> sequences, int64_t tokens,
                     const std::function<void(int64_t rows)>& progress);
  void FillSynthetic(kv::Cache& cache, std::span<const kv::SequenceId> ids, int64_t tokens,
                     const std::function<void(int64_t rows)>& progress);
  // Call after the first step: reserves the pages that the other steps start. Less than
  // DecodeKvBytes(): sequences made without a prompt do not need a prompt's staging memory.
  void AllocateForSteps(const kv::CachePlan& plan, int64_t batch, int64_t context,
                        kv::Cache& cache) const;
  Measurement Finish(int64_t batch, int64_t context, std::vector<double> seconds,
                     const Cost& cost) const;
  int32_t NextToken();

  Device& device_;
  Stream& stream_;
  model::Decoder& decoder_;
  MachineRates rates_;
  RunOptions options_;
  std::mt19937_64 random_;
  size_t next_token_ = 0;  // in options_.tokens
};

}  // namespace litecache::bench
