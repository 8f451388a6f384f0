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

// How the KV cache of a decode measurement gets its rows.
enum class Fill {
  kPrefill,    // the model processes a prompt of that length for every sequence
  kSynthetic,  // random rows are stored: the same memory, without the model's work
};

// Decode steps before the clock: buffers are allocated, threads awake, a graph is captured.
inline constexpr int64_t kWarmUpSteps = 4;
inline constexpr int64_t kBreakdownSteps = 12;

struct RunOptions {
  int64_t prefill_chunk = 512;
  int64_t prefill_repeats = 3;
  int64_t decode_steps = 32;  // timed, after kWarmUpSteps that are not
  Fill fill = Fill::kSynthetic;
  uint64_t seed = 1;       // of tokens and synthetic rows
  bool graphs = true;      // replay a GPU's decode steps
  bool breakdown = false;  // time the sections of kBreakdownSteps more
  // Tokens fed, over and over, each sequence from another place; empty: random ones. Policies that
  // reuse rows need a text: queries of random tokens point anywhere.
  std::vector<int32_t> tokens;
};

// A decode step by what its operations belong to.
struct Breakdown {
  // Seconds a step; with `launch` the measurement's. What no mark covers is kRest.
  std::array<double, kSections> seconds{};
  // Before a step's first operation and behind its last: the host gives it to the device, and
  // learns that it has ended.
  double launch = 0;
  int64_t marks = 0;        // of a step; 0: not measured
  double mark_seconds = 0;  // what one of them costs, taken off
};

struct Measurement {
  int64_t batch = 0;
  int64_t context = 0;
  double seconds = 0;  // median: of a whole prefill, or of one decode step
  double slowest = 0;  // of those
  double spread = 0;   // (slowest - fastest) / median
  Cost cost;
  double floor_seconds = 0;  // the machine's rates allow no less
  // Of a decode measurement whose rows come of prompts: how long those took, and all steps, from
  // the first on; as many as were timed and kWarmUpSteps.
  double prompts_seconds = 0, steps_seconds = 0;
  // Of a decode measurement, over its timed steps.
  kv::Stats kv;
  double cpu_seconds = 0;  // a step: of all threads of the process, in user and system
  Breakdown breakdown;
  uint64_t device_memory = 0;  // in use on a GPU, whoever uses it; 0: one memory
};

// Called with what has been done of a measurement; for progress bars.
using Progress = std::function<void(int64_t done, int64_t total)>;

class Runner {
 public:
  Runner(Device& device, Stream& stream, model::Decoder& decoder, const MachineRates& rates,
         const RunOptions& options);

  // Throws InvalidArgument where `context` passes the model's.
  Measurement Prefill(const kv::CachePlan& plan, int64_t context, const Progress& progress);
  // From here on.
  void UseGraphs(bool use) { options_.graphs = use; }
  // Steps at `context` tokens and a few more. The logits of every sequence are computed, tokens
  // are not sampled.
  // The floor's bytes are those of the weights and what the cache has read, scored and moved.
  Measurement Decode(const kv::CachePlan& plan, int64_t batch, int64_t context,
                     const Progress& progress);

  // Tokens a sequence goes beyond its context while it is measured.
  int64_t MoreTokens() const {
    return options_.decode_steps + kWarmUpSteps + (options_.breakdown ? kBreakdownSteps : 0);
  }
  // KV memory the decode measurement takes.
  kv::TierBytes DecodeKvBytes(const kv::CachePlan& plan, int64_t batch, int64_t context) const;

 private:
  // step_seconds: of the steps measured before.
  Breakdown MeasureSections(const std::function<double()>& step, double step_seconds);
  void CheckContext(int64_t tokens) const;
  // Prompts of so many tokens, a chunk a step, of several sequences as an engine has them.
  void FillByPrefill(kv::Cache& cache, std::span<const kv::SequenceId> sequences, int64_t tokens,
                     const std::function<void(int64_t rows)>& progress);
  void FillSynthetic(kv::Cache& cache, std::span<const kv::SequenceId> ids, int64_t tokens,
                     const std::function<void(int64_t rows)>& progress);
  // After the first step: memory of the pages that the others begin. Not DecodeKvBytes(): sequences
  // that no prompt has made have no need of what a prompt is staged in.
  void ProvideForSteps(const kv::CachePlan& plan, int64_t batch, int64_t context,
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
