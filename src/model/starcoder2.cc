// StarCoder2: LayerNorm, biases, and feed-forward blocks of GELU without a gate.
#include <fmt/core.h>

#include <utility>

#include "model/config_fields.h"
#include "model/families.h"
#include "model/transformer.h"

namespace litecache::model {
namespace {

void ParseStarcoder2(const io::JsonFields& fields, ModelConfig& config) {
  ParseUngated(fields, "gelu_pytorch_tanh", FeedForward::kGelu, config);
  ParseRmsFamily(fields, config);
  ParseWindows(fields, config);
  config.norm_eps = fields.Number("norm_epsilon", 0, 1).value_or(1e-5);
  config.layer_norm = true;
  config.norm_bias = true;
  config.up = "mlp.c_fc";
  config.down = "mlp.c_proj";
  config.tie_embeddings = fields.Bool("tie_word_embeddings").value_or(true);
  const bool bias = fields.Bool("use_bias").value_or(true);
  config.attention_bias = bias;
  config.attention_output_bias = bias;
  config.mlp_bias = bias;
  for (const auto& [key, wanted] :
       {std::pair("norm_type", "layer_norm"), {"mlp_type", "default"}}) {
    if (fields.String(key).value_or(wanted) != wanted) {
      fields.Refuse(key, fmt::format("StarCoder2 is supported only with {}", wanted));
    }
  }
}

}  // namespace

const FamilySpec kStarcoder2Spec = {Family::kStarcoder2, "Starcoder2ForCausalLM", ParseStarcoder2,
                                    BuildTransformer};

}  // namespace litecache::model
