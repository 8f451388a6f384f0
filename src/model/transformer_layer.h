// The weights of one layer of the common transformer, as the config describes it.
#pragma once

#include <cstdint>
#include <string>

#include "device/device.h"
#include "model/config.h"
#include "model/delta_block.h"
#include "model/expert_block.h"
#include "model/linear_weights.h"
#include "model/norm_weights.h"
#include "model/weights.h"
#include "ops/common/xielu.h"

namespace litecache::model {

// What the model does not have is null.
struct TransformerLayer {
  NormWeights attention_norm;  // [hidden], of the attention block's input
  // k and v have no rows where a layer attends those of an earlier one, v where values are keys.
  LinearWeights q, k, v, o;
  LinearWeights output_gate;  // of attention
  DeltaBlock delta;           // instead of q, k and v, in recurrent layers
  // [head_dim], of each head; or [q_width] and [kv_width], of all heads together
  const float* q_norm = nullptr;
  const float* k_norm = nullptr;
  // Of the token's input to this layer: products to its width and from it, and a norm [hidden].
  LinearWeights input_gate, input_projection;
  NormWeights input_norm;
  const float* scale = nullptr;       // [1], of the residual stream behind the layer
  const float* sinks = nullptr;       // [q_heads] (ops/attention/softmax.h)
  NormWeights attention_output_norm;  // [hidden]
  NormWeights feed_forward_norm;      // [hidden], of the feed-forward block's input
  LinearWeights gate, up, down;       // gate: if the blocks have one
  ops::XieluFunction xielu;
  ExpertBlock experts;  // instead of the three or beside them, in layers that have experts
  NormWeights feed_forward_output_norm;  // [hidden]
};

// name: the layer's in the checkpoint, with its last dot. device: where `weights` are.
TransformerLayer TakeTransformerLayer(Device& device, WeightStore& weights,
                                      const ModelConfig& config, int64_t index,
                                      const std::string& name);

}  // namespace litecache::model
