#include "model/layer_inputs.h"

#include <cmath>

#include "ops/dense/convert.h"
#include "ops/dense/embedding.h"
#include "ops/dense/norm.h"
#include "ops/dense/scale.h"
#include "ops/linear/linear.h"

namespace litecache::model {

LayerInputs TakeLayerInputs(WeightStore& weights, const ModelConfig& config,
                            const std::string& prefix) {
  const int64_t width = config.layers * config.layer_input;
  return {.embedding = weights.Matrix(prefix + "embed_tokens_per_layer.weight",
                                      config.layer_input_vocab, width),
          .projection =
              weights.Matrix(prefix + "per_layer_model_projection.weight", width, config.hidden),
          .norm = weights.NormWeight(prefix + "per_layer_projection_norm.weight",
                                     config.layer_input, config.norm_added)};
}

void MakeLayerInputs(Stream& stream, const ModelConfig& config, const LayerInputs& weights,
                     std::span<const int32_t> tokens, float embedding_scale,
                     const TransformerActivations& a) {
  const auto share = static_cast<float>(std::sqrt(0.5));
  const auto epsilon = static_cast<float>(config.norm_eps);
  const MatrixView& inputs = a.layer_inputs;
  const bool rounded = a.h.dtype != a.x.dtype;
  if (rounded) ops::Convert(stream, a.x, a.h);
  ops::Linear(stream, rounded ? a.h : a.x, weights.projection, nullptr, inputs);
  ops::Scale(stream, 1 / std::sqrt(static_cast<float>(config.hidden)), inputs);
  ops::RmsNorm(stream, inputs, weights.norm, epsilon, config.layers, inputs);
  ops::Scale(stream, share, inputs);
  ops::Embedding(stream, weights.embedding, tokens, a.token_inputs);
  ops::AddScaled(stream, share * embedding_scale, a.token_inputs, inputs);
}

}  // namespace litecache::model
