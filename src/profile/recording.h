// The inputs of a model's attention for a text: all keys, and the queries at chosen positions.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "device/device.h"
#include "kv/cache.h"
#include "model/decoder.h"

namespace litecache::profile {

struct Recording {
  kv::Layout layout;
  float scale = 0;                 // factor of q.k
  int64_t tokens = 0;              // n
  std::vector<int64_t> positions;  // of the queries, ascending: P of them
  int64_t steps = 0;               // the last `steps` positions are the text's last ones

  // [layers][kv_heads][n][head_dim], after RoPE, rounded as in the cache.
  std::vector<float> keys;
  // [layers][P][q_heads][head_dim], after RoPE.
  std::vector<float> queries;
  // [distances][layers][steps][q_heads][head_dim]: predicted from the input of the layer that is
  // distance = 1, 2, ... layers earlier; zeros where there is none.
  int64_t distances = 0;
  std::vector<float> predicted;

  const float* Keys(int64_t layer, int64_t kv_head) const {
    return keys.data() + (layer * layout.kv_heads + kv_head) * tokens * layout.head_dim;
  }
  const float* Query(int64_t layer, int64_t index, int64_t q_head) const {
    const auto count = static_cast<int64_t>(positions.size());
    return queries.data() + ((layer * count + index) * layout.q_heads + q_head) * layout.head_dim;
  }
  const float* Predicted(int64_t distance, int64_t layer, int64_t step, int64_t q_head) const {
    const int64_t of_layer = ((distance - 1) * layout.layers + layer) * steps + step;
    return predicted.data() + (of_layer * layout.q_heads + q_head) * layout.head_dim;
  }
  int64_t first_step() const { return static_cast<int64_t>(positions.size()) - steps; }

  // The queries of one KV head's group at the last `steps` positions, [steps][group][head_dim]: the
  // actual ones (distance 0), or those predicted `distance` layers earlier.
  std::vector<float> StepQueries(int64_t layer, int64_t kv_head, int64_t distance) const;
};

struct RecordingOptions {
  int64_t steps = 512;          // last positions whose queries and predictions are kept
  std::vector<int64_t> others;  // further positions, ascending, below the last `steps`
  int64_t chunk = 512;          // tokens per pass
  int64_t distances = 1;        // queries are predicted 1, ..., this many layers ahead; at most
                                // Cache::kMostAhead
};

// Runs `tokens` through the decoder with full attention, in chunks. progress(tokens done) may throw
// to cancel.
Recording Record(Device& device, Stream& stream, model::Decoder& decoder,
                 std::span<const int32_t> tokens, const RecordingOptions& options,
                 const std::function<void(int64_t done)>& progress);

}  // namespace litecache::profile
