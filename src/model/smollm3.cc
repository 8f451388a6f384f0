// SmolLM3: every fourth layer has no RoPE, and may have a window.
#include <vector>

#include "model/config_fields.h"
#include "model/families.h"
#include "model/transformer.h"

namespace litecache::model {
namespace {

void ParseSmolLm3(const io::JsonFields& fields, ModelConfig& config) {
  ParseRmsFamily(fields, config, {.theta = 2e6});
  config.tie_embeddings = fields.Bool("tie_word_embeddings").value_or(true);
  config.attention_bias = fields.Bool("attention_bias").value_or(false);
  config.attention_output_bias = config.attention_bias;
  config.mlp_bias = fields.Bool("mlp_bias").value_or(false);

  // The list holds 1 for the layers that do have RoPE, in spite of its name.
  const std::vector<int64_t> rotated = fields.IntOrInts("no_rope_layers", 0, 1);
  const int64_t interval = fields.Int("no_rope_layer_interval", 1, kMaxLayers).value_or(4);
  if (!rotated.empty() && static_cast<int64_t>(rotated.size()) != config.layers) {
    fields.Fail("no_rope_layers", fmt::format("must have {} elements", config.layers));
  }
  for (int64_t i = 0; i < config.layers; ++i) {
    config.unrotated.push_back(rotated.empty() ? (i + 1) % interval == 0
                                               : rotated[static_cast<size_t>(i)] == 0);
  }
  if (!fields.Bool("use_sliding_window").value_or(false)) return RefuseSlidingLayers(fields);
  ParseWindows(fields, config, [&](int64_t layer) { return !config.rotates(layer); });
}

}  // namespace

const FamilySpec kSmolLm3Spec = {Family::kSmolLm3, "SmolLM3ForCausalLM", ParseSmolLm3,
                                 BuildTransformer};

}  // namespace litecache::model
