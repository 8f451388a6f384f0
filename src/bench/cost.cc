#include "bench/cost.h"

#include <algorithm>
#include <cstdint>

namespace litecache::bench {
namespace {

// Numbers of weights in matrices, by part of the model.
struct Matrices {
  double kv = 0;           // K and V projections of a layer
  double projections = 0;  // all of attention, kv included
  double head = 0;         // logits
};

Matrices CountMatrices(const model::ModelConfig& c) {
  const auto d = [](int64_t value) { return static_cast<double>(value); };
  Matrices m;
  m.kv = 2 * d(c.hidden) * d(c.kv_heads) * d(c.head_dim);
  const double q_and_o = 2 * d(c.hidden) * d(c.q_heads) * d(c.head_dim);
  m.projections = m.kv + q_and_o;
  m.head = d(c.vocab) * d(c.embedding_dim > 0 ? c.embedding_dim : c.hidden);
  return m;
}

// Weights that a row meets in a layer's feed-forward block: of experts, those that it is sent to.
double FeedForwardWeights(const model::ModelConfig& c, int64_t layer) {
  const auto hidden = static_cast<double>(c.hidden);
  if (!c.has_experts(layer)) {
    return (c.family == model::Family::kOpt ? 2 : 3) * hidden * static_cast<double>(c.intermediate);
  }
  return hidden *
         static_cast<double>(c.experts.count + 3 * c.experts.active * c.experts.intermediate);
}

// One query row over `keys` keys in one layer: q.k and the weighted sum.
double AttentionFlops(const model::ModelConfig& c, double keys) {
  return 4 * static_cast<double>(c.q_heads * c.head_dim) * keys;
}

// The keys that all tokens of a prompt attend in a layer.
double AttendedKeys(const model::ModelConfig& c, int64_t layer, int64_t tokens) {
  const int64_t window = c.has_window(layer) ? std::min(c.window, tokens) : tokens;
  const auto first = static_cast<double>(window), later = static_cast<double>(tokens - window);
  return first * (first + 1) / 2 + later * first;
}

}  // namespace

Cost PrefillCost(const model::ModelConfig& c, int64_t tokens, uint64_t weight_bytes) {
  const Matrices m = CountMatrices(c);
  const auto n = static_cast<double>(tokens);
  // After the last layer's attention only the last token continues.
  const int64_t last = c.layers - 1;
  double keys = AttendedKeys(c, last, tokens) - AttendedKeys(c, last, tokens - 1);
  double weights = 0;  // of all layers but the last
  for (int64_t layer = 0; layer < last; ++layer) {
    keys += AttendedKeys(c, layer, tokens);
    weights += m.projections + FeedForwardWeights(c, layer);
  }
  Cost cost;
  cost.flops = 2 * weights * n + 2 * m.kv * (n - 1) +
               2 * (m.projections + FeedForwardWeights(c, last)) + AttentionFlops(c, keys) +
               2 * m.head;
  cost.bytes = static_cast<double>(weight_bytes);
  return cost;
}

Cost DecodeCost(const model::ModelConfig& c, int64_t batch, uint64_t weight_bytes,
                uint64_t attended_bytes, uint64_t other_bytes, uint64_t kv_bytes_per_token) {
  const Matrices m = CountMatrices(c);
  const auto b = static_cast<double>(batch);
  const auto layers = static_cast<double>(c.layers);
  // Keys that a layer attends, over all sequences.
  const double keys = static_cast<double>(attended_bytes) / static_cast<double>(kv_bytes_per_token);
  double weights = m.projections * layers + m.head;
  for (int64_t layer = 0; layer < c.layers; ++layer) weights += FeedForwardWeights(c, layer);
  Cost cost;
  cost.flops = b * 2 * weights + layers * AttentionFlops(c, keys);
  cost.bytes = static_cast<double>(weight_bytes + attended_bytes + other_bytes);
  return cost;
}

}  // namespace litecache::bench
