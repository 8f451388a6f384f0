// The settings of policy `retroinfer` at their published defaults, in KvOptions.settings.
#pragma once

#include <cstdint>
#include <span>

#include "litecache/options.h"

namespace litecache {

// RetroInfer: clusters of tokens; the best are attended exactly, the next ones by their centroids.
struct RetroInferOptions {
  int64_t cluster_tokens = 16;    // tokens per cluster, on average
  int64_t segment_tokens = 8192;  // tokens clustered together
  int64_t update_tokens = 1024;   // generated tokens that become clusters together
  int64_t iterations = 10;        // of k-means, the last one over all clusters
  double retrieval = 0.018;       // share of the clusters attended exactly, in (0, 1]
  double estimation = 0.232;      // share of the clusters estimated, in [0, 1]
  int64_t block_tokens = 8;       // rows that the block cache stores and moves together
  double cache = 3;               // blocks cached, as a multiple of those retrieved per step
};

std::span<const Option<RetroInferOptions>> RetroInferOptionTable();

}  // namespace litecache
