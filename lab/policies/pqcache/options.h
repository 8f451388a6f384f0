// The settings of policy `pqcache` at their published defaults, in KvOptions.settings.
#pragma once

#include <cstdint>
#include <span>

#include "litecache/options.h"

namespace litecache {

// PQCache: half of the budget is selected with product-quantized keys; the other half is recent
// rows.
struct PqCacheOptions {
  int64_t sink_tokens = 32;     // first tokens, always attended
  double share = 0.1;           // of the prompt: half of it top rows, half recent rows
  int64_t subspaces = 2;        // parts of a key that are quantized separately
  int bits = 6;                 // per code of a part
  int64_t iterations = 0;       // of k-means; 0: as many as fit into a layer's prefill time
  int64_t cache_tokens = 4096;  // rows per layer in the block cache
  int64_t block_tokens = 128;   // rows per block
};

std::span<const Option<PqCacheOptions>> PqCacheOptionTable();

}  // namespace litecache
