// MiniMax-M2: norms over all heads' queries and keys, and experts that a sigmoid's scores and a
// correction choose.
#include <vector>

#include "model/config_fields.h"
#include "model/families.h"
#include "model/transformer.h"

namespace litecache::model {
namespace {

void ParseMiniMaxM2(const io::JsonFields& fields, ModelConfig& config) {
  ParseRmsFamily(fields, config, {.head_dim = 128, .rotary_share = 1, .theta = 5e6});
  for (const int64_t type : fields.IntOrInts("attn_type_list", 0, 1)) {
    if (type != 1) fields.Refuse("attn_type_list", "all layers have full attention, 1");
  }
  if (const auto rotated = fields.Int("rotary_dim", 2, config.head_dim)) {
    if (*rotated % 2 != 0) fields.Fail("rotary_dim", "must be even");
    config.rotary_dim = *rotated;
  }
  config.wide_qk_norm = fields.Bool("use_qk_norm").value_or(true);
  ExpertConfig& experts = config.experts;
  experts = ParseExperts(fields, "num_local_experts", "intermediate_size");
  experts.sigmoid = true;
  experts.module = "block_sparse_moe";
  experts.correction = "e_score_correction_bias";
  experts.gate = "w1";
  experts.up = "w3";
  experts.down = "w2";
}

}  // namespace

const FamilySpec kMiniMaxM2Spec = {Family::kMiniMaxM2, "MiniMaxM2ForCausalLM", ParseMiniMaxM2,
                                   BuildTransformer};

}  // namespace litecache::model
