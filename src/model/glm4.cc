// GLM-4 (0414): norms before and after the blocks, and RoPE on neighbouring dimensions of half a
// head. GLM-4.5 to 4.7: experts that a sigmoid's scores and a correction choose.
#include "model/config_fields.h"
#include "model/families.h"
#include "model/transformer.h"

namespace litecache::model {
namespace {

void ParseGlm4(const io::JsonFields& fields, ModelConfig& config) {
  ParseRmsFamily(fields, config, {.head_dim = 128, .rotary_share = 0.5, .norm_eps = 1.5625e-7});
  RefuseSlidingLayers(fields);
  config.norms = {.attention_input = "input_layernorm",
                  .attention_output = "post_self_attn_layernorm",
                  .feed_forward_input = "post_attention_layernorm",
                  .feed_forward_output = "post_mlp_layernorm"};
  config.rotary_neighbours = true;
  config.fused_gate_up = true;
  config.attention_bias = fields.Bool("attention_bias").value_or(true);
}

void ParseGlm4Moe(const io::JsonFields& fields, ModelConfig& config) {
  ParseRmsFamily(fields, config, {.rotary_share = 0.5, .norm_eps = 1e-5});
  config.qk_norm = fields.Bool("use_qk_norm").value_or(false);
  config.attention_bias = fields.Bool("attention_bias").value_or(false);
  for (const char* groups : {"n_group", "topk_group"}) {
    if (fields.Int(groups, 1, kMaxLayers).value_or(1) != 1) {
      fields.Refuse(groups, "experts are chosen among all, in one group");
    }
  }
  ExpertConfig& experts = config.experts;
  experts = ParseExperts(fields, "n_routed_experts", "moe_intermediate_size");
  experts.sigmoid = true;
  experts.normalized = fields.Bool("norm_topk_prob").value_or(true);
  experts.scale = static_cast<float>(fields.Number("routed_scaling_factor", 0, 1e6).value_or(1));
  experts.correction = "gate.e_score_correction_bias";
  ParseSharedExperts(fields, "n_shared_experts", /*default_count=*/1, &experts);
  const int64_t dense = fields.Int("first_k_dense_replace", 0, kMaxLayers).value_or(1);
  for (int64_t layer = 0; layer < config.layers; ++layer) experts.dense.push_back(layer < dense);
}

}  // namespace

const FamilySpec kGlm4MoeSpec = {Family::kGlm4Moe, "Glm4MoeForCausalLM", ParseGlm4Moe,
                                 BuildTransformer};
const FamilySpec kGlm4Spec = {Family::kGlm4, "Glm4ForCausalLM", ParseGlm4, BuildTransformer};

}  // namespace litecache::model
