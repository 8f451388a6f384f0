// Qwen2 and Qwen2.5: biases on q, k and v.
#include "model/config_fields.h"
#include "model/families.h"
#include "model/transformer.h"

namespace litecache::model {

void ParseQwenWindows(const io::JsonFields& fields, ModelConfig& config) {
  if (!fields.Bool("use_sliding_window").value_or(false)) return RefuseSlidingLayers(fields);
  const int64_t first = fields.Int("max_window_layers", 0, kMaxLayers).value_or(28);
  ParseWindows(fields, config, [&](int64_t layer) { return layer >= first; });
}

namespace {

void ParseQwen2(const io::JsonFields& fields, ModelConfig& config) {
  ParseRmsFamily(fields, config);
  ParseQwenWindows(fields, config);
  config.attention_bias = true;
}

}  // namespace

const FamilySpec kQwen2Spec = {Family::kQwen2, "Qwen2ForCausalLM", ParseQwen2, BuildTransformer};

}  // namespace litecache::model
