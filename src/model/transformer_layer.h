// The weights of one layer of the common transformer, as the config describes it.
#pragma once

#include <cstdint>
#include <string>

#include "model/config.h"
#include "model/delta_block.h"
#include "model/expert_block.h"
#include "model/linear_weights.h"
#include "model/weights.h"

namespace litecache::model {

// Null: the model has no such norm.
struct TransformerLayer {
  const float* attention_norm = nullptr;  // [hidden], of the attention block's input
  // k and v have no rows where a layer attends those of an earlier one, v where values are keys.
  LinearWeights q, k, v, o;
  LinearWeights output_gate;  // of attention
  DeltaBlock delta;           // instead of q, k and v, in recurrent layers
  // [head_dim], of each head; or [q_width] and [kv_width], of all heads together
  const float* q_norm = nullptr;
  const float* k_norm = nullptr;
  // Of the token's input to this layer: products to its width and from it, and a norm [hidden].
  LinearWeights input_gate, input_projection;
  const float* input_norm = nullptr;
  const float* scale = nullptr;                  // [1], of the residual stream behind the layer
  const float* sinks = nullptr;                  // [q_heads] (ops/attention/softmax.h)
  const float* attention_output_norm = nullptr;  // [hidden]
  const float* feed_forward_norm = nullptr;      // [hidden], of the feed-forward block's input
  LinearWeights gate, up, down;
  ExpertBlock experts;  // instead of the three or beside them, in layers that have experts
  const float* feed_forward_output_norm = nullptr;  // [hidden]
};

// name: the layer's in the checkpoint, with its last dot.
TransformerLayer TakeTransformerLayer(WeightStore& weights, const ModelConfig& config,
                                      int64_t index, const std::string& name);

}  // namespace litecache::model
