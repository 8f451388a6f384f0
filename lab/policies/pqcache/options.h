// The settings of policy `pqcache` at their published defaults, in KvOptions.settings.
#pragma once

#include <cstdint>
#include <span>

#include "litecache/options.h"

namespace litecache {

// PQCache: rows chosen by product-quantized keys, half of the budget; the other half is recent.
struct PqCacheOptions {
  int64_t sink_tokens = 32;     // first tokens, always attended
  double share = 0.1;           // of the prompt: half of it top rows, half recent rows
  int64_t subspaces = 2;        // parts of a key that are quantized apart
  int bits = 6;                 // of a part's code
  int64_t iterations = 0;       // of k-means; 0: as many as a layer's prefill leaves time for
  int64_t cache_tokens = 4096;  // rows a layer that the block cache keeps
  int64_t block_tokens = 128;   // rows that enter it together
};

std::span<const Option<PqCacheOptions>> PqCacheOptionTable();

}  // namespace litecache
