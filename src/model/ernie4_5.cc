// ERNIE 4.5: RoPE on neighbouring dimensions; dense, or with experts that a correction chooses.
#include "model/config_fields.h"
#include "model/families.h"
#include "model/transformer.h"

namespace litecache::model {
namespace {

void ParseEveryErnie(const io::JsonFields& fields, ModelConfig& config, int64_t default_head_dim) {
  ParseRmsFamily(fields, config, {.head_dim = default_head_dim, .theta = 5e5, .norm_eps = 1e-5});
  RefuseSlidingLayers(fields);
  config.rotary_neighbours = true;
  config.tie_embeddings = fields.Bool("tie_word_embeddings").value_or(true);
  config.attention_bias = fields.Bool("use_bias").value_or(false);
  config.attention_output_bias = config.mlp_bias = config.attention_bias;
}

void ParseErnie(const io::JsonFields& fields, ModelConfig& config) {
  ParseEveryErnie(fields, config, /*default_head_dim=*/128);
}

void ParseErnieMoe(const io::JsonFields& fields, ModelConfig& config) {
  ParseEveryErnie(fields, config, /*default_head_dim=*/0);
  ExpertConfig& experts = config.experts;
  experts = ParseExperts(fields, "moe_num_experts", "moe_intermediate_size", "moe_k");
  if (config.mlp_bias) fields.Refuse("use_bias", "experts have no biases");
  experts.correction = "moe_statics.e_score_correction_bias";
  ParseSharedExperts(fields, "moe_num_shared_experts", /*default_count=*/2, &experts);
  const int64_t first = fields.Int("moe_layer_start_index", 0, kMaxLayers).value_or(1);
  const int64_t last = fields.Int("moe_layer_end_index", -1, kMaxLayers).value_or(-1);
  const int64_t step = fields.Int("moe_layer_interval", 1, kMaxLayers).value_or(1);
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    experts.dense.push_back((layer + 1) % step != 0 || layer < first ||
                            (last >= 0 && layer > last));
  }
}

}  // namespace

const FamilySpec kErnieMoeSpec = {Family::kErnieMoe, "Ernie4_5_MoeForCausalLM", ParseErnieMoe,
                                  BuildTransformer};
const FamilySpec kErnieSpec = {Family::kErnie, "Ernie4_5ForCausalLM", ParseErnie, BuildTransformer};

}  // namespace litecache::model
