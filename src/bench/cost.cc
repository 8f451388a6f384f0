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
  const double q_and_o = (c.output_gate ? 3 : 2) * d(c.hidden) * d(c.q_heads) * d(c.head_dim);
  m.projections = m.kv + q_and_o;
  m.head = d(c.vocab) * d(c.embedding_dim > 0 ? c.embedding_dim : c.hidden);
  return m;
}

// Weights that a row meets in a layer before its feed-forward block.
double MixerWeights(const model::ModelConfig& c, const Matrices& m, int64_t layer) {
  if (!c.is_recurrent(layer)) return m.projections;
  const ops::GatedDeltaShape& delta = c.delta;
  return static_cast<double>(c.hidden) *
         static_cast<double>(delta.channels() + 2 * delta.width() + 2 * delta.value_heads);
}

// A token's decay of a layer's state, its two products with keys and queries, and its update.
double StateFlops(const model::ModelConfig& c, int64_t layer) {
  return c.is_recurrent(layer) ? 7 * static_cast<double>(c.delta.width() * c.delta.key_dim) : 0;
}

// Weights that a row meets in a layer's feed-forward block: of experts, those that it is sent to.
double FeedForwardWeights(const model::ModelConfig& c, int64_t layer) {
  const auto hidden = static_cast<double>(c.hidden);
  if (!c.has_experts(layer)) {
    return (c.family == model::Family::kOpt ? 2 : 3) * hidden * static_cast<double>(c.intermediate);
  }
  const model::ExpertConfig& e = c.experts;
  const int64_t shared = 3 * e.shared + (e.gates_shared() ? 1 : 0);
  return hidden * static_cast<double>(e.count + 3 * e.active * e.intermediate + shared);
}

// One query row over `keys` keys in one layer: q.k and the weighted sum.
double AttentionFlops(const model::ModelConfig& c, double keys) {
  return 4 * static_cast<double>(c.q_heads * c.head_dim) * keys;
}

// The keys that all tokens of a prompt attend in a layer.
double AttendedKeys(const model::ModelConfig& c, int64_t layer, int64_t tokens) {
  if (c.is_recurrent(layer)) return 0;
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
  double weights = 0, states = StateFlops(c, last) * n;  // weights: of all layers but the last
  for (int64_t layer = 0; layer < last; ++layer) {
    keys += AttendedKeys(c, layer, tokens);
    weights += MixerWeights(c, m, layer) + FeedForwardWeights(c, layer);
    states += StateFlops(c, layer) * n;
  }
  // What the other tokens still need of the last layer: their keys and values, or their inputs of
  // its state.
  const double inputs =
      c.is_recurrent(last) ? static_cast<double>(c.hidden * c.delta.channels()) : m.kv;
  Cost cost;
  cost.flops = 2 * weights * n + 2 * inputs * (n - 1) +
               2 * (MixerWeights(c, m, last) + FeedForwardWeights(c, last)) +
               AttentionFlops(c, keys) + states + 2 * m.head;
  cost.bytes = static_cast<double>(weight_bytes);
  return cost;
}

Cost DecodeCost(const model::ModelConfig& c, int64_t batch, uint64_t weight_bytes,
                uint64_t attended_bytes, uint64_t other_bytes, uint64_t kv_bytes_per_token) {
  const Matrices m = CountMatrices(c);
  const auto b = static_cast<double>(batch);
  // Keys that a layer attends, over all sequences.
  const double keys = static_cast<double>(attended_bytes) / static_cast<double>(kv_bytes_per_token);
  double weights = m.head, states = 0, attending = 0;
  for (int64_t layer = 0; layer < c.layers; ++layer) {
    weights += MixerWeights(c, m, layer) + FeedForwardWeights(c, layer);
    states += StateFlops(c, layer);
    attending += c.is_recurrent(layer) ? 0 : 1;
  }
  Cost cost;
  cost.flops = b * (2 * weights + states) + attending * AttentionFlops(c, keys);
  cost.bytes = static_cast<double>(weight_bytes + attended_bytes + other_bytes);
  return cost;
}

}  // namespace litecache::bench
