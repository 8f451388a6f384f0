// Command R, R7B and A: one LayerNorm without a bias a layer, whose output attention and the
// feed-forward block both take; RoPE on neighbouring dimensions; scaled logits. R7B and A have
// windows in three layers of four, and no RoPE in the others.
#include <fmt/core.h>

#include <optional>
#include <utility>

#include "model/config_fields.h"
#include "model/families.h"
#include "model/transformer.h"

namespace litecache::model {
namespace {

void ParseEveryCohere(const io::JsonFields& fields, ModelConfig& config, double default_theta) {
  ParseRmsFamily(fields, config, {.theta = default_theta});
  config.norm_eps = fields.Number("layer_norm_eps", 0, 1).value_or(1e-5);
  config.norms.feed_forward_input.clear();
  config.layer_norm = true;
  config.parallel_blocks = true;
  config.rotary_neighbours = true;
  config.tie_embeddings = fields.Bool("tie_word_embeddings").value_or(true);
  config.attention_bias = fields.Bool("attention_bias").value_or(false);
  config.attention_output_bias = config.attention_bias;
  config.logit_scale = fields.Number("logit_scale", 1e-6, 1e6).value_or(0.0625);
  if (fields.Bool("use_qk_norm").value_or(false)) {
    fields.Refuse("use_qk_norm", "models whose heads have norms (Command R+) are not");
  }
  for (const char* key : {"use_parallel_block", "use_gated_activation"}) {
    if (!fields.Bool(key).value_or(true)) fields.Refuse(key, "only true is supported");
  }
  for (const auto& [key, wanted] : {std::pair("position_embedding_type", "rope_gptj"),
                                    {"order_of_interleaved_layers", "local_attn_first"}}) {
    if (fields.String(key).value_or(wanted) != wanted) {
      fields.Refuse(key, fmt::format("only {} is supported", wanted));
    }
  }
}

void ParseCohere(const io::JsonFields& fields, ModelConfig& config) {
  ParseEveryCohere(fields, config, /*default_theta=*/5e5);
  RefuseSlidingLayers(fields);
}

void ParseCohere2(const io::JsonFields& fields, ModelConfig& config) {
  ParseEveryCohere(fields, config, /*default_theta=*/1e4);
  // Without a window, no layer would have RoPE.
  fields.RequiredInt("sliding_window", 1, kMaxContext);
  const int64_t pattern = fields.Int("sliding_window_pattern", 1, kMaxLayers).value_or(4);
  const auto types = ParseLayerTypes(fields, config);
  const auto windowed = [&](int64_t layer) {
    return types ? (*types)[static_cast<size_t>(layer)] == "sliding_attention"
                 : (layer + 1) % pattern != 0;
  };
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    config.unrotated.push_back(!windowed(layer));
  }
  ParseWindows(fields, config, windowed);
}

}  // namespace

const FamilySpec kCohereSpec = {Family::kCohere, "CohereForCausalLM", ParseCohere,
                                BuildTransformer};
const FamilySpec kCohere2Spec = {Family::kCohere2, "Cohere2ForCausalLM", ParseCohere2,
                                 BuildTransformer};

}  // namespace litecache::model
