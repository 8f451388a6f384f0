// Times prefill and decode steps of a decoder.
#pragma once

#include <cstdint>
#include <functional>
#include <random>
#include <vector>

#include "bench/cost.h"
#include "bench/machine.h"
#include "device/device.h"
#include "kv/cache_plan.h"
#include "model/decoder.h"

namespace litecache::bench {

// How the KV cache of a decode measurement gets its rows.
enum class Fill {
  kPrefill,    // the model processes a prompt of that length for every sequence
  kSynthetic,  // random rows are stored: the same memory, without the model's work
};

struct RunOptions {
  int64_t prefill_chunk = 512;
  int64_t prefill_repeats = 3;
  int64_t decode_steps = 32;  // timed, after two that are not
  Fill fill = Fill::kSynthetic;
  uint64_t seed = 1;  // of tokens and synthetic rows
  // Tokens fed, over and over, each sequence from another place; empty: random ones. Policies that
  // reuse rows need a text: queries of random tokens point anywhere.
  std::vector<int32_t> tokens;
};

struct Measurement {
  int64_t batch = 0;
  int64_t context = 0;
  double seconds = 0;  // median: of a whole prefill, or of one decode step
  double spread = 0;   // (slowest - fastest) / median
  Cost cost;
  double floor_seconds = 0;  // the machine's rates allow no less
  // Of a decode measurement, over its timed steps.
  kv::Stats kv;
};

// Called with what has been done of a measurement; for progress bars.
using Progress = std::function<void(int64_t done, int64_t total)>;

class Runner {
 public:
  Runner(Device& device, Stream& stream, model::Decoder& decoder, const MachineRates& rates,
         const RunOptions& options);

  // Throws InvalidArgument where `context` passes the model's.
  Measurement Prefill(const kv::CachePlan& plan, int64_t context, const Progress& progress);
  // Steps at `context` tokens and a few more. The logits of every sequence are computed, tokens
  // are not sampled.
  // The floor's bytes are those of the weights and what the cache has read, scored and moved.
  Measurement Decode(const kv::CachePlan& plan, int64_t batch, int64_t context,
                     const Progress& progress);

  // KV memory the decode measurement takes.
  kv::TierBytes DecodeKvBytes(const kv::CachePlan& plan, int64_t batch, int64_t context) const;

 private:
  void CheckContext(int64_t tokens) const;
  void FillByPrefill(kv::Cache& cache, kv::SequenceId id, int64_t tokens,
                     const std::function<void(int64_t rows)>& progress);
  void FillSynthetic(kv::Cache& cache, kv::SequenceId id, int64_t tokens,
                     const std::function<void(int64_t rows)>& progress);
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
