// What a pass must at least compute and read, from a model's shapes.
#pragma once

#include <cstdint>

#include "model/config.h"

namespace litecache::bench {

struct Cost {
  double flops = 0;  // multiplications and additions
  double bytes = 0;  // read from memory once
};

// Prefill of `tokens` tokens of one sequence with logits for the last one. The last layer's rows
// that no logits need count with their keys and values only. weight_bytes: of one pass.
Cost PrefillCost(const model::ModelConfig& config, int64_t tokens, uint64_t weight_bytes);

// One decode step of `batch` sequences that have `context` tokens each. kv_bytes: of one token.
Cost DecodeCost(const model::ModelConfig& config, int64_t batch, int64_t context,
                uint64_t weight_bytes, uint64_t kv_bytes);

}  // namespace litecache::bench
