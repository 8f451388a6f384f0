// Gemma 2 and 3: windows in every other layer, or in five layers of six, where they have RoPE of
// their own; norms before and after blocks, whose weights are stored less 1. Gemma 2 caps scores
// and logits. What Gemma 4 has in common with them.
#include <cmath>
#include <initializer_list>
#include <utility>

#include "model/config_fields.h"
#include "model/families.h"
#include "model/transformer.h"

namespace litecache::model {
namespace {

constexpr double kSmallestCap = 1e-3, kLargestCap = 1e6;

// A cap of scores or logits; null: none.
double ParseCap(const io::JsonFields& fields, const char* key, double by_default) {
  if (fields.IsNull(key)) return 0;
  return fields.Number(key, kSmallestCap, kLargestCap).value_or(by_default);
}

// What Gemma 2 and 3 have in common.
void ParseOlderGemma(const io::JsonFields& fields, ModelConfig& config) {
  ParseGemma(fields, config, /*default_head_dim=*/256);
  if (fields.Bool("use_bidirectional_attention").value_or(false)) {
    fields.Refuse("use_bidirectional_attention", "tokens attend only those before them");
  }
  config.norm_added = 1;
  config.attention_scale =
      std::pow(fields.Number("query_pre_attn_scalar", 1e-6, 1e6).value_or(256), -0.5);
}

void ParseGemma2(const io::JsonFields& fields, ModelConfig& config) {
  ParseOlderGemma(fields, config);
  config.attention_cap = ParseCap(fields, "attn_logit_softcapping", 50);
  config.logit_cap = ParseCap(fields, "final_logit_softcapping", 30);
  // It is in all published configs; without it Transformers has another than none.
  fields.RequiredInt("sliding_window", 1, kMaxContext);
  ParseWindows(fields, config, [](int64_t layer) { return layer % 2 == 0; });
}

void ParseGemma3(const io::JsonFields& fields, ModelConfig& config) {
  ParseOlderGemma(fields, config);
  constexpr const char* kScores = "attn_logit_softcapping";
  if (fields.Has(kScores)) fields.Refuse(kScores, "scores are not capped");
  config.logit_cap = ParseCap(fields, "final_logit_softcapping", 0);
  config.qk_norm = true;
  const int64_t pattern = fields.Int("sliding_window_pattern", 1, kMaxLayers).value_or(6);
  config.rope = ParseRope(fields, config.max_context, "full_attention", 1e6);
  const double theta = fields.Number("rope_local_base_freq", 1e-6, 1e15).value_or(10000);
  config.window_rope = ParseWindowRope(fields, config.max_context, theta);
  ParseWindows(
      fields, config, [&](int64_t layer) { return (layer + 1) % pattern != 0; },
      /*default_window=*/4096);
}

}  // namespace

void ParseGemma(const io::JsonFields& fields, ModelConfig& config, int64_t default_head_dim) {
  constexpr const char* kGelu = "gelu_pytorch_tanh";
  ParseRmsFamily(fields, config, {.head_dim = default_head_dim, .layer_type = "full_attention"});
  // It is that of the stretched positions.
  config.max_context = fields.RequiredInt("max_position_embeddings", 1, kMaxContext);
  config.tie_embeddings = fields.Bool("tie_word_embeddings").value_or(true);
  if (fields.String("hidden_activation").value_or(kGelu) != kGelu) {
    fields.Refuse("hidden_activation", fmt::format("only {} is supported", kGelu));
  }
  config.gate_function = ops::kGeluTanh;
  config.attention_bias = fields.Bool("attention_bias").value_or(false);
  config.attention_output_bias = config.attention_bias;
  config.norms = {.attention_input = "input_layernorm",
                  .attention_output = "post_attention_layernorm",
                  .feed_forward_input = "pre_feedforward_layernorm",
                  .feed_forward_output = "post_feedforward_layernorm"};
  config.embedding_scale = std::sqrt(static_cast<double>(config.hidden));
}

nlohmann::json GemmaTextConfig(const nlohmann::json& document) {
  nlohmann::json text = InnerTextConfig(document, "Gemma3ForCausalLM");
  // What published configs leave out, as Transformers' Gemma3TextConfig sets it.
  for (const auto& [key, value] :
       std::initializer_list<std::pair<const char*, int64_t>>{{"vocab_size", 262208},
                                                              {"num_attention_heads", 8},
                                                              {"num_key_value_heads", 4},
                                                              {"max_position_embeddings", 131072},
                                                              {"sliding_window", 4096}}) {
    if (!text.contains(key)) text[key] = value;
  }
  return text;
}

const FamilySpec kGemma2Spec = {Family::kGemma2, "Gemma2ForCausalLM", ParseGemma2,
                                BuildTransformer};
const FamilySpec kGemma3Spec = {Family::kGemma3, "Gemma3ForCausalLM", ParseGemma3,
                                BuildTransformer};

}  // namespace litecache::model
