// The activations of a transformer's step, and their places in its memory.
#pragma once

#include <algorithm>
#include <cstdint>

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
  MatrixView attention;         // [T, q_width]
  MatrixView output_gate;       // [T, q_width] f32, of attention's output
  // [T, all heads' q_width] f32 each, of norms over the heads of all ranks.
  MatrixView wide, wide_parts;
  DeltaActivations delta;     // of recurrent layers, instead of q, k, v and attention
  MatrixView gate, up;        // [T, intermediate]
  ExpertActivations experts;  // of layers with experts
  // [T, hidden] f32, of a block, in models that norm or scale it before they add it to x.
  MatrixView output;
  // The rows that get logits, after the last layer's attention.
  MatrixView logit_x;      // [L, hidden] f32
  MatrixView logit_mixed;  // [L, q_width], or of a recurrent layer
  LogitParts logits;
  // Of steps that predict in the same product (at most kTogether rows): the layer's own rows, then
  // those of the later layer.
  MatrixView both_h;  // [2 T, hidden]
  MatrixView both_q, both_k, both_v;
  // Predicted queries on a GPU; layers use them in turns, each until it has attended.
  MatrixView next_q[kPredictedQueries];
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

// expert_scratch: bytes, of layers with experts.
inline TransformerActivations PlaceTransformer(Arena& arena, const ModelConfig& config,
                                               DType product, int64_t rows, int64_t logit_rows,
                                               bool on_gpu, uint64_t expert_scratch) {
  TransformerActivations a;
  a.rotations = arena.Take(rows, config.rotated());
  if (config.rope.query_growth != 0) a.query_rotations = arena.Take(rows, config.rotated());
  if (config.window_rope) a.window_rotations = arena.Take(rows, config.rotated());
  a.x = arena.Take(rows, config.hidden);
  a.h = arena.Take(rows, config.hidden, product);
  if (ChangesOutputs(config)) a.output = arena.Take(rows, config.hidden);
  a.logit_x = arena.Take(logit_rows, config.hidden);
  a.logit_mixed = arena.Take(logit_rows, std::max(config.q_width(), config.delta.width()), product);
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
  const size_t shared = arena.used();
  a.q = arena.Take(rows, config.q_width());
  a.k = arena.Take(rows, config.kv_width());
  a.v = arena.Take(rows, config.kv_width());
  a.attention = arena.Take(rows, config.q_width(), product);
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
    a.experts = PlaceExperts(arena, config.experts, product, rows, expert_scratch);
    arena.Rewind(shared);
  }
  a.gate = arena.Take(rows, config.intermediate, product);
  a.up = arena.Take(rows, config.intermediate, product);
  return a;
}

}  // namespace litecache::model
