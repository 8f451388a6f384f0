// The activations of a transformer's step, and their places in its memory.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>

#include "base/matrix_view.h"
#include "model/arena.h"
#include "model/config.h"
#include "model/decoder_base.h"
#include "model/delta_block.h"
#include "model/expert_block.h"

namespace litecache::model {

// One step's activations: f32, except for the inputs of matrix products (`product`). q, k, v and
// attention share memory with gate and up, and with what experts use: the first four are dead when
// the feed-forward block starts.
struct TransformerActivations {
  MatrixView rotations;         // [T, rotated dimensions of a head] f32, of RoPE
  MatrixView window_rotations;  // the same of layers with a window, if they have their own RoPE
  MatrixView query_rotations;   // the same of queries, if they have their own scale
  MatrixView x;                 // [T, hidden] f32, residual stream
  MatrixView h;                 // [T, hidden] normed
  MatrixView q;                 // [T, q_width] f32
  MatrixView k, v;              // [T, kv_width] f32
  // Where layers attend the rows of earlier ones, k and v are these, of the layer's kind: they stay
  // until the next layer of the kind computes its own. row_input [T, hidden]: the input that the
  // whole ones were computed from.
  MatrixView whole_k, whole_v, window_k, window_v, row_input;
  MatrixView attention;    // [T, q_width]
  MatrixView output_gate;  // [T, q_width] f32, of attention's output
  // [T, all heads' q_width] f32 each, of norms over the heads of all ranks.
  MatrixView wide, wide_parts;
  DeltaActivations delta;     // of recurrent layers, instead of q, k, v and attention
  MatrixView gate, up;        // [T, intermediate]
  MatrixView layer_inputs;    // [T, layers * layer_input] f32, of the tokens for each layer
  MatrixView token_inputs;    // the same, scratch
  MatrixView layer_input;     // [T, layer_input], the part of a layer
  MatrixView input_gate;      // [T, layer_input] f32
  MatrixView gated_input;     // [T, layer_input], that part times what the gate makes of it
  ExpertActivations experts;  // of layers with experts
  // [T, hidden] f32, of a block, in models that norm or scale it before they add it to x.
  MatrixView output;
  // The rows that get logits, after the last layer's attention.
  MatrixView logit_x;      // [L, hidden] f32
  MatrixView logit_mixed;  // [L, q_width], or of a recurrent layer
  MatrixView logit_h;      // [L, hidden] normed, if blocks are parallel
  MatrixView logit_input;  // [L, layer_input] f32
  LogitParts logits;
  // Of steps that predict in the same product (at most kTogether rows): the layer's own rows, then
  // those of the later layer.
  MatrixView both_h;  // [2 T, hidden]
  MatrixView both_q, both_k, both_v;
  // Predicted queries on a GPU; layers use them in turns, each until it has attended.
  MatrixView next_q[kPredictedQueries];

  // Gives the views the widths of a layer.
  void FitLayer(const ModelConfig& config, int64_t layer) {
    const auto fit = [](int64_t width, std::initializer_list<MatrixView*> views) {
      for (MatrixView* view : views) {
        *view = MatrixView::Of(view->data, view->dtype, view->rows, width);
      }
    };
    if (config.shared_layers > 0) {
      k = config.has_window(layer) ? window_k : whole_k;
      v = config.has_window(layer) ? window_v : whole_v;
    }
    fit(config.q_width_of(layer), {&q, &attention});
    fit(config.kv_width_of(layer), {&k, &v});
    fit(config.intermediate_of(layer), {&gate, &up});
    if (config.layer_input > 0) {
      layer_input = layer_inputs.Columns(layer * config.layer_input, config.layer_input);
    }
  }
};

// On a GPU, products of so few rows take no longer for twice as many rows: up to this many decode
// rows, a later layer's predicted queries are part of the product for this layer's queries, keys
// and values.
inline constexpr int64_t kTogether = 8;

// Whether a block's output is not just added to the residual stream.
inline bool ChangesOutputs(const ModelConfig& config) {
  return config.residual_scale != 1 || !config.norms.attention_output.empty() ||
         !config.norms.feed_forward_output.empty();
}

// The rotated dimensions of a head of a layer with a window.
inline int64_t WindowRotated(const ModelConfig& config) {
  return config.window_head_dim > 0 ? config.window_head_dim : config.rotated();
}

// expert_scratch: bytes, of layers with experts.
inline TransformerActivations PlaceTransformer(Arena& arena, const ModelConfig& config,
                                               DType product, int64_t rows, int64_t logit_rows,
                                               bool on_gpu, uint64_t expert_scratch) {
  TransformerActivations a;
  // The widest layer's, where they differ.
  const auto widest = [&](auto width_of) {
    int64_t most = 0;
    for (int64_t i = 0; i < config.layers; ++i) most = std::max(most, (config.*width_of)(i));
    return most;
  };
  const int64_t q_width = widest(&ModelConfig::q_width_of);
  const int64_t kv_width = widest(&ModelConfig::kv_width_of);
  const int64_t intermediate = widest(&ModelConfig::intermediate_of);
  a.rotations = arena.Take(rows, config.rotated());
  if (config.rope.query_growth != 0) a.query_rotations = arena.Take(rows, config.rotated());
  if (config.window_rope) a.window_rotations = arena.Take(rows, WindowRotated(config));
  a.x = arena.Take(rows, config.hidden);
  a.h = arena.Take(rows, config.hidden, product);
  if (ChangesOutputs(config)) a.output = arena.Take(rows, config.hidden);
  a.logit_x = arena.Take(logit_rows, config.hidden);
  a.logit_mixed = arena.Take(logit_rows, std::max(q_width, config.delta.width()), product);
  if (config.parallel_blocks) a.logit_h = arena.Take(logit_rows, config.hidden, product);
  a.logits = PlaceLogits(arena, config, logit_rows);
  if (on_gpu) {
    for (MatrixView& q : a.next_q)
      q = arena.Take(std::max(2 * std::min(rows, kTogether), PredictedRows(rows, logit_rows)),
                     config.q_width());
  }
  if (on_gpu && rows <= kTogether) {
    a.both_h = arena.Take(2 * rows, config.hidden, product);
    a.both_q = arena.Take(2 * rows, config.q_width());
    a.both_k = arena.Take(2 * rows, config.kv_width());
    a.both_v = arena.Take(2 * rows, config.kv_width());
  }
  if (config.layer_input > 0) {
    a.layer_inputs = arena.Take(rows, config.layers * config.layer_input);
    a.logit_input = arena.Take(logit_rows, config.layer_input);
  }
  if (config.shared_layers > 0) {
    for (MatrixView* view : {&a.whole_k, &a.whole_v, &a.window_k, &a.window_v}) {
      *view = arena.Take(rows, kv_width);
    }
    a.row_input = arena.Take(rows, config.hidden, product);
  }
  const size_t shared = arena.used();
  a.q = arena.Take(rows, q_width);
  if (config.shared_layers == 0) {
    a.k = arena.Take(rows, kv_width);
    a.v = arena.Take(rows, kv_width);
  }
  a.attention = arena.Take(rows, q_width, product);
  if (config.wide_qk_norm && config.shard.whole != nullptr) {
    for (MatrixView* view : {&a.wide, &a.wide_parts}) {
      *view = arena.Take(rows, config.shard.ranks * config.q_width());
    }
  }
  if (config.output_gate) a.output_gate = arena.Take(rows, config.q_width());
  arena.Rewind(shared);
  if (!config.recurrent.empty()) {
    a.delta = PlaceDelta(arena, config.delta, product, rows, on_gpu);
    arena.Rewind(shared);
  }
  if (config.experts.count > 0) {
    a.experts = PlaceExperts(arena, config.experts, config.hidden, product, rows, expert_scratch);
    arena.Rewind(shared);
  }
  if (config.layer_input > 0) {
    a.token_inputs = arena.Take(rows, config.layers * config.layer_input);
    arena.Rewind(shared);
    a.input_gate = arena.Take(rows, config.layer_input);
    a.gated_input = arena.Take(rows, config.layer_input, product);
    arena.Rewind(shared);
  }
  a.gate = arena.Take(rows, intermediate, product);
  a.up = arena.Take(rows, intermediate, product);
  return a;
}

}  // namespace litecache::model
