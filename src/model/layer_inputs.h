// The inputs that each layer gets of each token, beside the residual stream (Gemma 4).
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "model/config.h"
#include "model/transformer_activations.h"
#include "model/weights.h"

namespace litecache::model {

// width: layers * config.layer_input.
struct LayerInputs {
  MatrixView embedding;         // [config.layer_input_vocab, width]
  MatrixView projection;        // [width, hidden]
  const float* norm = nullptr;  // [config.layer_input]
};

// prefix: of the names in the checkpoint.
LayerInputs TakeLayerInputs(WeightStore& weights, const ModelConfig& config,
                            const std::string& prefix);

// a.layer_inputs = the mean, times the root of 2, of a product of a.x, normed by layer, and
// embedding_scale times the tokens' rows of the embedding. Overwrites token_inputs and h of `a`.
void MakeLayerInputs(Stream& stream, const ModelConfig& config, const LayerInputs& weights,
                     std::span<const int32_t> tokens, float embedding_scale,
                     const TransformerActivations& a);

}  // namespace litecache::model
