// Gemma 4, its text: windows in all layers but every sixth, with heads and RoPE of their own; norms
// of queries, keys and values; the last layers of the small models attend the rows of earlier ones,
// and each of their layers gets an embedding of the token; capped logits; experts beside the
// feed-forward blocks of one model.
#include <string>
#include <utility>

#include "model/config_fields.h"
#include "model/families.h"
#include "model/transformer.h"

namespace litecache::model {
namespace {

// The heads of layers that attend the whole context. Transformers writes them by layer, the
// published configs once for all.
void ParseWholeHeads(const io::JsonFields& fields, ModelConfig& config) {
  constexpr const char *kLayers = "per_layer_config", *kHeads = "num_key_value_heads";
  config.window_head_dim =
      std::exchange(config.head_dim, fields.Int("global_head_dim", 2, kMaxHeadDim).value_or(512));
  config.window_kv_heads = config.kv_heads;
  if (config.keys_as_values) {
    config.kv_heads =
        fields.Int("num_global_key_value_heads", 1, kMaxHeads).value_or(config.kv_heads);
  }
  const auto by_layer = fields.Object(kLayers);
  for (int64_t layer = 0, first = -1; by_layer && layer < config.layers; ++layer) {
    const auto heads = by_layer->Object(std::to_string(layer));
    if (config.has_window(layer)) {
      if (heads) fields.Refuse(kLayers, "must not have layers with a window");
      continue;
    }
    // What equals the other layers' is left out.
    int64_t dim = config.window_head_dim, kv_heads = config.window_kv_heads;
    if (heads) dim = heads->Int("head_dim", 2, kMaxHeadDim).value_or(dim);
    if (heads) kv_heads = heads->Int(kHeads, 1, kMaxHeads).value_or(kv_heads);
    if (first >= 0 && (dim != config.head_dim || kv_heads != config.kv_heads)) {
      fields.Refuse(kLayers, "layers without a window must have heads alike");
    }
    first = layer;
    config.head_dim = dim;
    config.kv_heads = kv_heads;
  }
  if (config.head_dim % 2 != 0) fields.Fail("global_head_dim", "must be even");
  if (config.q_heads % config.kv_heads != 0) {
    fields.Fail("num_global_key_value_heads",
                fmt::format("must divide num_attention_heads = {}", config.q_heads));
  }
}

// The last layers, which have no keys and values of their own.
void ParseSharedLayers(const io::JsonFields& fields, ModelConfig& config) {
  constexpr const char* kShared = "num_kv_shared_layers";
  config.shared_layers = fields.Int(kShared, 0, config.layers - 1).value_or(0);
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    if (config.rows_of(layer) < 0) {
      fields.Fail(kShared, fmt::format("layer {} has no layer before these of its kind", layer));
    }
  }
  if (config.shared_layers > 0 && fields.Bool("use_double_wide_mlp").value_or(false)) {
    config.shared_intermediate = 2 * config.intermediate;
  }
}

// What each layer gets of the token.
void ParseLayerInput(const io::JsonFields& fields, ModelConfig& config) {
  constexpr const char *kWidth = "hidden_size_per_layer_input",
                       *kVocab = "vocab_size_per_layer_input";
  config.layer_input = fields.Int(kWidth, 0, kMaxWidth).value_or(256);
  if (config.layer_input == 0) return;
  config.layer_input_vocab = fields.Int(kVocab, 1, kMaxVocab).value_or(262144);
  if (config.layer_input_vocab < config.vocab) {
    fields.Refuse(kVocab, fmt::format("fewer than vocab_size = {}", config.vocab));
  }
  if (config.layer_input * config.layers > kMaxWidth) {
    fields.Fail(kWidth, fmt::format("times num_hidden_layers = {} must be at most {}",
                                    config.layers, kMaxWidth));
  }
}

void ParseGemma4(const io::JsonFields& fields, ModelConfig& config) {
  ParseGemma(fields, config, /*default_head_dim=*/256);
  if (fields.Bool("enable_moe_block").value_or(false)) {
    config.experts = ParseExperts(fields, "num_experts", "moe_intermediate_size", "top_k_experts");
    config.experts.beside = true;
    config.experts.module = "";
    config.experts.router = "router.proj";
  }
  // "vision": tokens of images, which are not read, attend those behind them.
  if (fields.String("use_bidirectional_attention").value_or("vision") != "vision") {
    fields.Refuse("use_bidirectional_attention", "tokens attend only those before them");
  }
  // Without these, Transformers has other defaults than other families.
  for (const char* key : {"rope_parameters", "sliding_window"}) {
    if (!fields.Has(key)) fields.Fail(key, "is missing");
  }
  config.qk_norm = true;
  config.value_norm = true;
  config.layer_scales = true;
  config.attention_scale = 1;
  config.logit_cap = fields.Number("final_logit_softcapping", 1e-3, 1e6).value_or(0);
  config.window_rope = ParseWindowRope(fields, config.max_context, 10000);
  // The last layer attends the whole context in any case.
  ParseWindows(fields, config, [](int64_t layer) { return (layer + 1) % 6 != 0; });
  if (!config.windowed.empty() && config.windowed.back()) {
    fields.Refuse(fields.Has("layer_types") ? "layer_types" : "num_hidden_layers",
                  "the last layer must attend the whole context");
  }
  if (config.windowed.empty()) config.window_rope.reset();
  config.keys_as_values = fields.Bool("attention_k_eq_v").value_or(false);
  ParseWholeHeads(fields, config);
  ParseSharedLayers(fields, config);
  ParseLayerInput(fields, config);
}

}  // namespace

const FamilySpec kGemma4Spec = {Family::kGemma4, "Gemma4ForCausalLM", ParseGemma4,
                                BuildTransformer};

}  // namespace litecache::model
