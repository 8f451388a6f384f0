// GLM-4 (0414): norms before and after the blocks, and RoPE on neighbouring dimensions of half a
// head.
#include "model/config_fields.h"
#include "model/families.h"
#include "model/transformer.h"

namespace litecache::model {
namespace {

void ParseGlm4(const io::JsonFields& fields, ModelConfig& config) {
  ParseRmsFamily(fields, config, /*default_head_dim=*/128, /*default_rotary_share=*/0.5);
  RefuseSlidingLayers(fields);
  config.norms = {.attention_input = "input_layernorm",
                  .attention_output = "post_self_attn_layernorm",
                  .feed_forward_input = "post_attention_layernorm",
                  .feed_forward_output = "post_mlp_layernorm"};
  config.rotary_neighbours = true;
  config.fused_gate_up = true;
  config.attention_bias = fields.Bool("attention_bias").value_or(false);
}

}  // namespace

const FamilySpec kGlm4Spec = {Family::kGlm4, "Glm4ForCausalLM", ParseGlm4, BuildTransformer};

}  // namespace litecache::model
