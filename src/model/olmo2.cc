// OLMo 2 and 3: norms after the blocks instead of before them, and over all heads' queries and
// keys; OLMo 3 has windows in three layers of four. OLMoE: norms before the blocks, and experts.
#include "model/config_fields.h"
#include "model/families.h"
#include "model/transformer.h"

namespace litecache::model {
namespace {

void SetOlmoLayers(const io::JsonFields& fields, ModelConfig& config) {
  config.norms = {.attention_input = "",
                  .attention_output = "post_attention_layernorm",
                  .feed_forward_input = "",
                  .feed_forward_output = "post_feedforward_layernorm"};
  config.wide_qk_norm = true;
  config.attention_bias = fields.Bool("attention_bias").value_or(false);
  config.attention_output_bias = config.attention_bias;
}

void ParseOlmo2(const io::JsonFields& fields, ModelConfig& config) {
  ParseRmsFamily(fields, config, {.norm_eps = 1e-5});
  RefuseSlidingLayers(fields);
  SetOlmoLayers(fields, config);
}

void ParseOlmo3(const io::JsonFields& fields, ModelConfig& config) {
  ParseRmsFamily(fields, config, {.layer_type = "full_attention", .theta = 5e5, .norm_eps = 1e-5});
  SetOlmoLayers(fields, config);
  config.window_rope = ParseWindowRope(fields, config.max_context, config.rope.theta);
  ParseWindows(
      fields, config, [](int64_t layer) { return (layer + 1) % 4 != 0; }, /*default_window=*/4096);
}

void ParseOlmoe(const io::JsonFields& fields, ModelConfig& config) {
  ParseRmsFamily(fields, config, {.norm_eps = 1e-5});
  if (fields.Has("clip_qkv")) fields.Refuse("clip_qkv", "projections are not clipped");
  config.wide_qk_norm = true;
  config.attention_bias = fields.Bool("attention_bias").value_or(false);
  config.attention_output_bias = config.attention_bias;
  config.experts = ParseExperts(fields, "num_experts", "intermediate_size");
  config.experts.normalized = fields.Bool("norm_topk_prob").value_or(false);
}

}  // namespace

const FamilySpec kOlmo2Spec = {Family::kOlmo2, "Olmo2ForCausalLM", ParseOlmo2, BuildTransformer};
const FamilySpec kOlmo3Spec = {Family::kOlmo3, "Olmo3ForCausalLM", ParseOlmo3, BuildTransformer};
const FamilySpec kOlmoeSpec = {Family::kOlmoe, "OlmoeForCausalLM", ParseOlmoe, BuildTransformer};

}  // namespace litecache::model
