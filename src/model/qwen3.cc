// Qwen3: RMSNorm on every head's query and key, explicit head_dim; dense, or with experts.
#include "model/config_fields.h"
#include "model/families.h"
#include "model/transformer.h"

namespace litecache::model {
namespace {

void ParseEveryQwen3(const io::JsonFields& fields, ModelConfig& config, int64_t default_head_dim) {
  ParseRmsFamily(fields, config, {.head_dim = default_head_dim});
  config.qk_norm = true;
  config.attention_bias = fields.Bool("attention_bias").value_or(false);
  config.attention_output_bias = config.attention_bias;
}

void ParseQwen3(const io::JsonFields& fields, ModelConfig& config) {
  ParseEveryQwen3(fields, config, /*default_head_dim=*/128);
  ParseQwenWindows(fields, config, [](int64_t layer, int64_t first) { return layer >= first; });
}

void ParseQwen3Moe(const io::JsonFields& fields, ModelConfig& config) {
  ParseEveryQwen3(fields, config, /*default_head_dim=*/0);
  ParseQwenWindows(fields, config, [](int64_t, int64_t) { return true; });
  config.experts = ParseQwenExperts(fields, config, /*normalized_by_default=*/false);
  config.experts.shared = 0;
}

}  // namespace

const FamilySpec kQwen3MoeSpec = {Family::kQwen3Moe, "Qwen3MoeForCausalLM", ParseQwen3Moe,
                                  BuildTransformer};
const FamilySpec kQwen3Spec = {Family::kQwen3, "Qwen3ForCausalLM", ParseQwen3, BuildTransformer};

}  // namespace litecache::model
