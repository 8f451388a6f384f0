// Qwen2 and Qwen2.5: biases on q, k and v; dense, or with experts one of which all rows use.
#include <algorithm>
#include <vector>

#include "model/config_fields.h"
#include "model/families.h"
#include "model/transformer.h"

namespace litecache::model {

void ParseQwenWindows(const io::JsonFields& fields, ModelConfig& config,
                      bool (*by_default)(int64_t layer, int64_t max_window_layers)) {
  if (!fields.Bool("use_sliding_window").value_or(false)) return RefuseSlidingLayers(fields);
  const int64_t layers = fields.Int("max_window_layers", 0, kMaxLayers).value_or(28);
  ParseWindows(
      fields, config, [&](int64_t layer) { return by_default(layer, layers); },
      /*default_window=*/4096);
}

ExpertConfig ParseQwenExperts(const io::JsonFields& fields, const ModelConfig& config,
                              bool normalized_by_default) {
  ExpertConfig experts = ParseExperts(fields, "num_experts", "moe_intermediate_size");
  experts.normalized = fields.Bool("norm_topk_prob").value_or(normalized_by_default);
  const int64_t step = fields.Int("decoder_sparse_step", 1, kMaxLayers).value_or(1);
  const std::vector<int64_t> dense = fields.IntOrInts("mlp_only_layers", 0, kMaxLayers);
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    experts.dense.push_back((layer + 1) % step != 0 ||
                            std::ranges::find(dense, layer) != dense.end());
  }
  experts.shared = fields.Int("shared_expert_intermediate_size", 0, kMaxWidth).value_or(0);
  return experts;
}

namespace {

void ParseQwen2(const io::JsonFields& fields, ModelConfig& config) {
  ParseRmsFamily(fields, config);
  ParseQwenWindows(fields, config, [](int64_t layer, int64_t first) { return layer >= first; });
  config.attention_bias = true;
}

void ParseQwen2Moe(const io::JsonFields& fields, ModelConfig& config) {
  ParseRmsFamily(fields, config);
  ParseQwenWindows(fields, config,
                   [](int64_t layer, int64_t end) { return layer % 2 == 0 && layer < end; });
  config.attention_bias = fields.Bool("qkv_bias").value_or(true);
  config.experts = ParseQwenExperts(fields, config, /*normalized_by_default=*/false);
  if (config.experts.shared == 0) {
    fields.Fail("shared_expert_intermediate_size", "is missing");
  }
}

}  // namespace

const FamilySpec kQwen2MoeSpec = {Family::kQwen2Moe, "Qwen2MoeForCausalLM", ParseQwen2Moe,
                                  BuildTransformer};

const FamilySpec kQwen2Spec = {Family::kQwen2, "Qwen2ForCausalLM", ParseQwen2, BuildTransformer};

}  // namespace litecache::model
