#include "bench/cost.h"

#include <algorithm>
#include <cstdint>

namespace litecache::bench {
namespace {

// Weights of the product that gives the logits.
double HeadWeights(const model::ModelConfig& c) {
  return static_cast<double>(c.vocab * (c.embedding_dim > 0 ? c.embedding_dim : c.hidden));
}

// Weights of a layer's projections to keys and values.
double RowWeights(const model::ModelConfig& c, int64_t layer) {
  if (c.shares_rows(layer)) return 0;
  const int64_t matrices = c.keys_as_values && !c.has_window(layer) ? 1 : 2;
  return static_cast<double>(c.hidden * matrices * c.kv_width_of(layer));
}

// Weights that a row meets in a layer before its feed-forward block.
double MixerWeights(const model::ModelConfig& c, int64_t layer) {
  if (!c.is_recurrent(layer)) {
    const int64_t q_and_o = (c.output_gate ? 3 : 2) * c.q_width_of(layer);
    return RowWeights(c, layer) + static_cast<double>(c.hidden * q_and_o);
  }
  const ops::GatedDeltaShape& delta = c.delta;
  return static_cast<double>(c.hidden) *
         static_cast<double>(delta.channels() + 2 * delta.width() + 2 * delta.value_heads);
}

// A token's decay of a layer's state, its two products with keys and queries, and its update.
double StateFlops(const model::ModelConfig& c, int64_t layer) {
  return c.is_recurrent(layer) ? 7 * static_cast<double>(c.delta.width() * c.delta.key_dim) : 0;
}

// Weights that a row meets in a layer's feed-forward block: of experts, those that it is sent to;
// and for the layer's input of the token.
double FeedForwardWeights(const model::ModelConfig& c, int64_t layer) {
  const auto hidden = static_cast<double>(c.hidden);
  double ordinary = 0;
  if (c.has_ordinary_block(layer)) {
    const bool gated =
        c.family != model::Family::kOpt && c.feed_forward == model::FeedForward::kGated;
    const int64_t matrices = gated ? 3 : 2;
    ordinary =
        hidden * static_cast<double>(matrices * c.intermediate_of(layer) + 3 * c.layer_input);
  }
  if (!c.has_experts(layer)) return ordinary;
  const model::ExpertConfig& e = c.experts;
  const int64_t shared = 3 * e.shared + (e.gates_shared() ? 1 : 0);
  return ordinary + hidden * static_cast<double>(e.count + 3 * e.active * e.intermediate + shared);
}

// One query row over `keys` keys in one layer: q.k and the weighted sum.
double AttentionFlops(const model::ModelConfig& c, int64_t layer, double keys) {
  return 4 * static_cast<double>(c.q_width_of(layer)) * keys;
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
  const auto n = static_cast<double>(tokens);
  // After the last layer's attention only the last token continues.
  const int64_t last = c.layers - 1;
  double weights = 0, states = StateFlops(c, last) * n;  // weights: of all layers but the last
  double attention =
      AttentionFlops(c, last, AttendedKeys(c, last, tokens) - AttendedKeys(c, last, tokens - 1));
  for (int64_t layer = 0; layer < last; ++layer) {
    attention += AttentionFlops(c, layer, AttendedKeys(c, layer, tokens));
    weights += MixerWeights(c, layer) + FeedForwardWeights(c, layer);
    states += StateFlops(c, layer) * n;
  }
  // What the other tokens still need of the last layer: their keys and values, or their inputs of
  // its state.
  const double inputs = c.is_recurrent(last) ? static_cast<double>(c.hidden * c.delta.channels())
                                             : RowWeights(c, last);
  Cost cost;
  cost.flops = 2 * weights * n + 2 * inputs * (n - 1) +
               2 * (MixerWeights(c, last) + FeedForwardWeights(c, last)) + attention + states +
               2 * HeadWeights(c);
  cost.bytes = static_cast<double>(weight_bytes);
  return cost;
}

Cost DecodeCost(const model::ModelConfig& c, int64_t batch, uint64_t weight_bytes,
                uint64_t attended_bytes, uint64_t other_bytes, uint64_t kv_bytes_per_token) {
  const auto b = static_cast<double>(batch);
  // Keys that a layer attends, over all sequences.
  const double keys = static_cast<double>(attended_bytes) / static_cast<double>(kv_bytes_per_token);
  double weights = HeadWeights(c), states = 0, attention = 0;
  for (int64_t layer = 0; layer < c.layers; ++layer) {
    weights += MixerWeights(c, layer) + FeedForwardWeights(c, layer);
    states += StateFlops(c, layer);
    if (!c.is_recurrent(layer)) attention += AttentionFlops(c, layer, keys);
  }
  Cost cost;
  cost.flops = b * (2 * weights + states) + attention;
  cost.bytes = static_cast<double>(weight_bytes + attended_bytes + other_bytes);
  return cost;
}

}  // namespace litecache::bench
