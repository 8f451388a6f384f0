// ERNIE 4.5: RoPE on neighbouring dimensions.
#include "model/config_fields.h"
#include "model/families.h"
#include "model/transformer.h"

namespace litecache::model {
namespace {

void ParseErnie(const io::JsonFields& fields, ModelConfig& config) {
  ParseRmsFamily(fields, config, /*default_head_dim=*/128);
  RefuseSlidingLayers(fields);
  config.rotary_neighbours = true;
  config.norm_eps = fields.Number("rms_norm_eps", 0, 1).value_or(1e-5);
  config.tie_embeddings = fields.Bool("tie_word_embeddings").value_or(true);
  config.attention_bias = fields.Bool("use_bias").value_or(false);
  config.attention_output_bias = config.mlp_bias = config.attention_bias;
}

}  // namespace

const FamilySpec kErnieSpec = {Family::kErnie, "Ernie4_5ForCausalLM", ParseErnie, BuildTransformer};

}  // namespace litecache::model
