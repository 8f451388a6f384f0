// Records a model's decode steps as a trace (lab/trace/trace.h).
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "device/device.h"
#include "lab/namespaces.h"
#include "lab/trace/trace.h"
#include "litecache/kv_options.h"
#include "model/decoder.h"

namespace litecache::lab {

struct TraceOptions {
  int64_t steps = 48;    // last tokens of the text, treated as decode steps
  double budget = 0.1;   // rows of a step, as a share of the tokens so far
  bool by_need = false;  // at most so many: KvBudget::by_need
  int64_t sink_tokens = 4;
  int64_t recent_tokens = 64;
  std::vector<float> importance;  // [layers][q_heads]; empty: 1 for all
  int64_t chunk = 512;            // tokens per pass
  // Predicted queries are compared with those at most this many steps away.
  int64_t lags = 4;
  // RetroInfer's clusters: average number of tokens, iterations, share of the clusters that is
  // ranked.
  int64_t cluster_tokens = 16;
  int64_t cluster_iterations = 10;
  double ranked = 0.1;
};

// Runs `tokens` with full attention; queries are predicted from every source that a cache can name.
// Rows are the exact top ones by the group's summed softmaxes, neither sink nor recent. The caller
// sets the trace's model, fingerprint, text and created. Throws InvalidArgument for a text that is
// too short.
Trace RecordTrace(Device& device, Stream& stream, model::Decoder& decoder,
                  std::span<const int32_t> tokens, const TraceOptions& options,
                  const std::function<void(int64_t done)>& progress);

}  // namespace litecache::lab
