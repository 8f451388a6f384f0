// OLMo 2: norms after the blocks instead of before them, and over all heads' queries and keys.
#include "model/config_fields.h"
#include "model/families.h"
#include "model/transformer.h"

namespace litecache::model {
namespace {

void ParseOlmo2(const io::JsonFields& fields, ModelConfig& config) {
  ParseRmsFamily(fields, config);
  RefuseSlidingLayers(fields);
  config.norms = {.attention_input = "",
                  .attention_output = "post_attention_layernorm",
                  .feed_forward_input = "",
                  .feed_forward_output = "post_feedforward_layernorm"};
  config.wide_qk_norm = true;
  config.attention_bias = fields.Bool("attention_bias").value_or(false);
  config.attention_output_bias = config.attention_bias;
}

}  // namespace

const FamilySpec kOlmo2Spec = {Family::kOlmo2, "Olmo2ForCausalLM", ParseOlmo2, BuildTransformer};

}  // namespace litecache::model
