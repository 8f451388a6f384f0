// Hunyuan (dense): norms of every head's query and key behind RoPE, whose base `alpha` stretches.
#include <fmt/core.h>

#include <utility>

#include "model/config_fields.h"
#include "model/families.h"
#include "model/transformer.h"

namespace litecache::model {
namespace {

void ParseHunYuan(const io::JsonFields& fields, ModelConfig& config) {
  ParseRmsFamily(fields, config, {.norm_eps = 1e-5});
  RefuseSlidingLayers(fields);
  if (config.rope.scaling == RopeScaling::kNtkAlpha && config.head_dim < 4) {
    fields.Fail("head_dim", "must be at least 4 where RoPE's base is stretched by alpha");
  }
  config.norms.query = "self_attn.query_layernorm";
  config.norms.key = "self_attn.key_layernorm";
  config.qk_norm = true;
  config.qk_norm_after_rope = true;
  config.attention_bias = fields.Bool("attention_bias").value_or(false);
  config.attention_output_bias = config.attention_bias;
  for (const auto& [key, wanted] :
       {std::pair("use_qk_norm", true), {"use_cla", false}, {"mlp_bias", false}}) {
    if (fields.Bool(key).value_or(wanted) != wanted) {
      fields.Refuse(key, fmt::format("Hunyuan is supported only with {}", wanted));
    }
  }
}

}  // namespace

const FamilySpec kHunYuanSpec = {Family::kHunYuan, "HunYuanDenseV1ForCausalLM", ParseHunYuan,
                                 BuildTransformer};

}  // namespace litecache::model
