// Llama 2, 3, 3.1, 3.2, Mistral, Ministral, Mixtral.
#include "model/config_fields.h"
#include "model/families.h"
#include "model/transformer.h"

namespace litecache::model {
namespace {

void ParseLlama(const io::JsonFields& fields, ModelConfig& config) {
  ParseRmsFamily(fields, config);
  RefuseSlidingLayers(fields);
  config.attention_bias = fields.Bool("attention_bias").value_or(false);
  config.attention_output_bias = config.attention_bias;
  config.mlp_bias = fields.Bool("mlp_bias").value_or(false);
}

void ParseMistral(const io::JsonFields& fields, ModelConfig& config) {
  ParseRmsFamily(fields, config);
  ParseWindows(fields, config, /*default_window=*/4096);
}

void ParseMinistral3(const io::JsonFields& fields, ModelConfig& config) {
  ParseRmsFamily(fields, config, {.head_dim = 128, .norm_eps = 1e-5});
  ParseWindows(fields, config);
  // Transformers' Ministral3Config has yarn of its own where a config says nothing of RoPE.
  if (!HasRopeParameters(fields)) fields.Fail("rope_parameters", "is missing");
  ParseQueryGrowth(fields, config.rope);
}

void ParseMixtral(const io::JsonFields& fields, ModelConfig& config) {
  ParseRmsFamily(fields, config, {.theta = 1e6, .norm_eps = 1e-5});
  ParseWindows(fields, config);
  config.experts = ParseExperts(fields, "num_local_experts", "intermediate_size");
  config.experts.module = "block_sparse_moe";
  config.experts.gate = "w1";
  config.experts.up = "w3";
  config.experts.down = "w2";
}

}  // namespace

nlohmann::json MistralTextConfig(const nlohmann::json& document) {
  nlohmann::json text = InnerTextConfig(document, "MistralForCausalLM");
  // Which of Mistral's families it is, only its type says.
  if (text.contains("model_type")) text.erase("architectures");
  return text;
}

const FamilySpec kLlamaSpec = {Family::kLlama, "LlamaForCausalLM", ParseLlama, BuildTransformer};
const FamilySpec kMistralSpec = {Family::kMistral, "MistralForCausalLM", ParseMistral,
                                 BuildTransformer};
const FamilySpec kMinistralSpec = {Family::kMinistral, "MinistralForCausalLM", ParseMistral,
                                   BuildTransformer};
const FamilySpec kMinistral3Spec = {Family::kMinistral3, "Ministral3ForCausalLM", ParseMinistral3,
                                    BuildTransformer};
const FamilySpec kMixtralSpec = {Family::kMixtral, "MixtralForCausalLM", ParseMixtral,
                                 BuildTransformer};

}  // namespace litecache::model
