// The minimum that a pass must compute and read, derived from a model's shapes.
#pragma once

#include <cstdint>

#include "model/config.h"

namespace litecache::bench {

struct Cost {
  double flops = 0;       // multiplications and additions
  double bytes = 0;       // read from memory once
  double link_bytes = 0;  // only with a GPU's cache: between host and device
};

// Prefill of `tokens` tokens of one sequence with logits for the last one. Rows of the last layer
// without logits count only with their keys and values. weight_bytes: read by one pass.
Cost PrefillCost(const model::ModelConfig& config, int64_t tokens, uint64_t weight_bytes);

// One decode step of `batch` sequences. attended_bytes: KV rows that attention reads in all layers
// and heads, in the layout's dtype; other_bytes: the cache's other reads and writes.
Cost DecodeCost(const model::ModelConfig& config, int64_t batch, uint64_t weight_bytes,
                uint64_t attended_bytes, uint64_t other_bytes, uint64_t kv_bytes_per_token);

}  // namespace litecache::bench
