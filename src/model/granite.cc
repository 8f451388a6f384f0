// Granite 3 (dense): embeddings, attention, residuals and logits are scaled.
#include "model/config_fields.h"
#include "model/families.h"
#include "model/transformer.h"

namespace litecache::model {
namespace {

void ParseGranite(const io::JsonFields& fields, ModelConfig& config) {
  ParseRmsFamily(fields, config);
  RefuseSlidingLayers(fields);
  config.attention_bias = fields.Bool("attention_bias").value_or(false);
  config.attention_output_bias = config.attention_bias;
  config.mlp_bias = fields.Bool("mlp_bias").value_or(false);
  const auto scale = [&](const char* key) { return fields.Number(key, 1e-6, 1e6).value_or(1); };
  config.embedding_scale = scale("embedding_multiplier");
  config.residual_scale = scale("residual_multiplier");
  config.attention_scale = scale("attention_multiplier");
  config.logit_scale = 1 / scale("logits_scaling");
}

}  // namespace

const FamilySpec kGraniteSpec = {Family::kGranite, "GraniteForCausalLM", ParseGranite,
                                 BuildTransformer};

}  // namespace litecache::model
