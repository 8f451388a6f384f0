// Qwen2 and Qwen2.5: biases on q, k and v.
#include "model/config_fields.h"
#include "model/families.h"
#include "model/transformer.h"

namespace litecache::model {

void RefuseQwenWindow(const io::JsonFields& fields, const ModelConfig& config) {
  RefuseSlidingLayers(fields);
  if (!fields.Bool("use_sliding_window").value_or(false)) return;
  const int64_t window = fields.Int("sliding_window", 1, kMaxContext).value_or(config.max_context);
  // Layers from max_window_layers on use the window.
  const int64_t full_layers = fields.Int("max_window_layers", 0, kMaxLayers).value_or(28);
  if (window < config.max_context && full_layers < config.layers) {
    fields.Refuse("use_sliding_window",
                  fmt::format("with sliding_window = {}: every token attends the whole context of "
                              "{} tokens",
                              window, config.max_context));
  }
}

namespace {

void ParseQwen2(const io::JsonFields& fields, ModelConfig& config) {
  ParseRmsFamily(fields, config);
  RefuseQwenWindow(fields, config);
  config.attention_bias = true;
}

}  // namespace

const FamilySpec kQwen2Spec = {Family::kQwen2, "Qwen2ForCausalLM", ParseQwen2, BuildTransformer};

}  // namespace litecache::model
