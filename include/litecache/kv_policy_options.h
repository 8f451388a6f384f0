// Settings of the policies that LiteCache is compared with, each at its published defaults
// (src/kv/README.md says where a policy lives and what it does).
#pragma once

#include <cstdint>

namespace litecache {

// FlexGen: all rows on the host, a layer's streamed in while the layer before it computes; exact.
struct FlexGenOptions {
  double device_share = 0;  // share of the KV heads whose rows stay on the device, in [0, 1]
};

// KVPR: exact; keys and values of the first tokens are recomputed from activations while the
// others travel.
struct KvprOptions {
  int64_t split = -1;   // tokens to recompute (l of KVPR eq. 12); -1: the scheduler's l*
  bool chunked = true;  // recomputation also overlaps the activations' own transfer (false: eq. 11)
};

// InfiniGen: rows chosen a layer ahead, with the part of the skewed query and keys that matters.
struct InfiniGenOptions {
  double partial = 0.2;      // share of the skewed channels kept of keys and queries, in (0, 1]
  double alpha = 4;          // rows whose score is above the best one's less alpha
  double cap = 0.2;          // and at most this share of the context
  int64_t dense_layers = 2;  // first layers that attend every row
};

// RetroInfer: clusters of tokens; the best are attended exactly, the next ones by their centroids.
struct RetroInferOptions {
  int64_t cluster_tokens = 16;    // tokens a cluster, on average
  int64_t segment_tokens = 8192;  // tokens that are clustered together
  int64_t update_tokens = 1024;   // generated tokens that become clusters together
  int64_t iterations = 10;        // of k-means, the last one over all clusters
  double retrieval = 0.018;       // share of the clusters attended exactly, in (0, 1]
  double estimation = 0.232;      // share of the clusters estimated, in [0, 1]
  int64_t block_tokens = 8;       // rows that the block cache keeps and moves together
  double cache = 3;               // blocks cached, as a multiple of those that a step retrieves
};

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

}  // namespace litecache
