// Qwen3.5: Gated DeltaNet in three layers of four; in the others attention with norms of queries
// and keys, a rotated quarter of a head, and a gate of its output; dense, or with experts one of
// which all rows use. Norms' weights are stored less 1. Qwen3-Next is the same in other files.
#include <cstdint>
#include <string>

#include "model/config_fields.h"
#include "model/families.h"
#include "model/transformer.h"

namespace litecache::model {
namespace {

void ParseQwen3_5(const io::JsonFields& fields, ModelConfig& config) {
  ParseRmsFamily(fields, config, {.head_dim = 256, .rotary_share = 0.25});
  config.norm_added = 1;
  config.qk_norm = true;
  if (fields.Bool("attention_bias").value_or(false)) {
    fields.Refuse("attention_bias", "projections have no biases");
  }
  config.output_gate = fields.Bool("attn_output_gate").value_or(true);
  ops::GatedDeltaShape& delta = config.delta;
  const auto number = [&](const char* key, int64_t high, int64_t fallback) {
    return fields.Int(key, 1, high).value_or(fallback);
  };
  delta.key_heads = number("linear_num_key_heads", kMaxHeads, 16);
  delta.value_heads = number("linear_num_value_heads", kMaxHeads, 32);
  delta.key_dim = number("linear_key_head_dim", ops::kMostDeltaDim, 128);
  delta.value_dim = number("linear_value_head_dim", ops::kMostDeltaDim, 128);
  delta.taps = number("linear_conv_kernel_dim", ops::kMostDeltaTaps, 4);
  if (delta.value_heads % delta.key_heads != 0) {
    fields.Fail("linear_num_value_heads",
                fmt::format("must be a multiple of linear_num_key_heads = {}", delta.key_heads));
  }
  const auto types = ParseLayerTypes(fields, config);
  const int64_t interval = number("full_attention_interval", kMaxLayers, 4);
  bool any = false;
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    bool recurrent = (layer + 1) % interval != 0;
    if (types) {
      const std::string& type = (*types)[static_cast<size_t>(layer)];
      recurrent = type == "linear_attention";
      if (!recurrent && type != "full_attention") {
        fields.Refuse(
            "layer_types",
            fmt::format("{} layers; full_attention and linear_attention are supported", type));
      }
    }
    config.recurrent.push_back(recurrent);
    any |= recurrent;
  }
  if (!any) config.recurrent.clear();
}

void ParseQwen3_5Moe(const io::JsonFields& fields, ModelConfig& config) {
  ParseQwen3_5(fields, config);
  config.experts = ParseQwenExperts(fields, config, /*normalized_by_default=*/true);
}

// Qwen3-Next is Qwen3.5's predecessor; its files differ.
void ParseQwen3Next(const io::JsonFields& fields, ModelConfig& config) {
  ParseQwen3_5Moe(fields, config);
  config.fused_delta = true;
}

}  // namespace

const FamilySpec kQwen3NextSpec = {Family::kQwen3Next, "Qwen3NextForCausalLM", ParseQwen3Next,
                                   BuildTransformer};
const FamilySpec kQwen3_5MoeSpec = {Family::kQwen3_5Moe, "Qwen3_5MoeForCausalLM", ParseQwen3_5Moe,
                                    BuildTransformer};
const FamilySpec kQwen3_5Spec = {Family::kQwen3_5, "Qwen3_5ForCausalLM", ParseQwen3_5,
                                 BuildTransformer};

}  // namespace litecache::model
