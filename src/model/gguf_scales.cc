#include "model/gguf_scales.h"

#include <cmath>

#include "model/config_fields.h"

namespace litecache::model {

using nlohmann::json;

json GraniteScalesOfGguf(const ArchitectureKeys& keys, int64_t head_dim) {
  const auto scale = [&](const char* key, double fallback) {
    const double value = keys.Number(key).value_or(0);
    return value == 0 ? fallback : value;  // as llama.cpp takes them
  };
  return {
      {"attention_multiplier", scale("attention.scale", std::pow(head_dim, -0.5))},
      {"embedding_multiplier", scale("embedding_scale", 1)},
      {"residual_multiplier", scale("residual_scale", 1)},
      {"logits_scaling", scale("logit_scale", 1)},
  };
}

json GemmaScalesOfGguf(const ArchitectureKeys& keys, int64_t layers, int64_t width_dim,
                       int64_t head_dim) {
  const bool second = keys.architecture() == "gemma2";
  // As llama.cpp knows it: of the largest model, the scale is that of those heads.
  const int64_t layers_of_largest = second ? 46 : 62;
  json config = {{"query_pre_attn_scalar", layers == layers_of_largest ? width_dim : head_dim}};
  if (second) {
    config["attn_logit_softcapping"] = keys.Number("attn_logit_softcapping").value_or(50);
    config["final_logit_softcapping"] = keys.Number("final_logit_softcapping").value_or(30);
    // As llama.cpp takes it, too.
    config["sliding_window"] = keys.Int("attention.sliding_window", kMaxContext, 4096);
    return config;
  }
  config["rope_local_base_freq"] = keys.Number("rope.freq_base_swa").value_or(10000.0);
  if (!keys.Number("rope.freq_base")) config["rope_theta"] = 1e6;
  return config;
}

}  // namespace litecache::model
