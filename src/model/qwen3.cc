// Qwen3: RMSNorm on every head's query and key, explicit head_dim; dense, or with experts.
#include <algorithm>
#include <vector>

#include "model/config_fields.h"
#include "model/families.h"
#include "model/transformer.h"

namespace litecache::model {
namespace {

void ParseQwen3(const io::JsonFields& fields, ModelConfig& config) {
  ParseRmsFamily(fields, config, /*default_head_dim=*/128);
  ParseQwenWindows(fields, config);
  config.qk_norm = true;
  config.attention_bias = fields.Bool("attention_bias").value_or(false);
  config.attention_output_bias = config.attention_bias;
}

void ParseQwen3Moe(const io::JsonFields& fields, ModelConfig& config) {
  ParseQwen3(fields, config);
  ExpertConfig& experts = config.experts;
  experts = ParseExperts(fields, "num_experts", "moe_intermediate_size");
  experts.normalized = fields.Bool("norm_topk_prob").value_or(false);
  const int64_t step = fields.Int("decoder_sparse_step", 1, kMaxLayers).value_or(1);
  const std::vector<int64_t> dense = fields.IntOrInts("mlp_only_layers", 0, kMaxLayers);
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    experts.dense.push_back((layer + 1) % step != 0 ||
                            std::ranges::find(dense, layer) != dense.end());
  }
}

}  // namespace

const FamilySpec kQwen3MoeSpec = {Family::kQwen3Moe, "Qwen3MoeForCausalLM", ParseQwen3Moe,
                                  BuildTransformer};
const FamilySpec kQwen3Spec = {Family::kQwen3, "Qwen3ForCausalLM", ParseQwen3, BuildTransformer};

}  // namespace litecache::model
