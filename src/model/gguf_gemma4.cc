#include "model/gguf_gemma4.h"

#include <fmt/core.h>

#include <string>
#include <vector>

#include "model/config_fields.h"
#include "model/gguf_rope.h"

namespace litecache::model {
namespace {

using nlohmann::json;

// Of each layer: the elements of an array, or the same number for all.
std::vector<int64_t> OfLayers(const io::Gguf& gguf, const ArchitectureKeys& keys, const char* key,
                              int64_t layers, int64_t high) {
  if (!gguf.HasArray(keys.Name(key))) {
    return std::vector<int64_t>(static_cast<size_t>(layers), keys.Int(key, high));
  }
  std::vector<int64_t> values = gguf.Integers(keys.Name(key));
  if (static_cast<int64_t>(values.size()) != layers) {
    keys.Fail(key, fmt::format("must have {} elements", layers));
  }
  for (const int64_t value : values) {
    if (value < 1 || value > high) {
      keys.Fail(key, fmt::format("must be from 1 to {}, not {}", high, value));
    }
  }
  return values;
}

// The number that all layers of a kind have; fallback: there are no such layers.
int64_t Common(const ArchitectureKeys& keys, const char* key, const std::vector<int64_t>& values,
               const std::vector<bool>& of_kind, int64_t fallback) {
  int64_t common = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    if (!of_kind[i]) continue;
    if (common != 0 && values[i] != common) {
      keys.Refuse(key, "layers of a kind, with a window or without, must be alike");
    }
    common = values[i];
  }
  return common == 0 ? fallback : common;
}

// Blocks of the last layers, which have no keys and values of their own, may be twice as wide.
void AddWidths(const io::Gguf& gguf, const ArchitectureKeys& keys, int64_t layers, int64_t shared,
               json* config) {
  constexpr const char* kWidth = "feed_forward_length";
  const std::vector<int64_t> widths = OfLayers(gguf, keys, kWidth, layers, kMaxWidth);
  const int64_t width = widths.front();
  const bool wide = widths.back() != width;
  for (int64_t layer = 0; layer < layers; ++layer) {
    const int64_t expected = wide && layer >= layers - shared ? 2 * width : width;
    if (widths[static_cast<size_t>(layer)] != expected) {
      keys.Refuse(kWidth,
                  "blocks must be of one width, or those of the last shared_kv_layers layers twice "
                  "as wide as the others");
    }
  }
  (*config)["intermediate_size"] = width;
  (*config)["use_double_wide_mlp"] = wide;
}

// Whether layers without a window have no projection to values.
bool KeysAreValues(const io::Checkpoint& checkpoint, const std::vector<bool>& whole,
                   int64_t own_layers) {
  for (int64_t layer = 0; layer < own_layers; ++layer) {
    const std::string name = fmt::format("model.layers.{}.self_attn.v_proj.weight", layer);
    if (whole[static_cast<size_t>(layer)] && checkpoint.Find(name).info == nullptr) return true;
  }
  return false;
}

}  // namespace

json Gemma4JsonOfGguf(const io::Checkpoint& checkpoint, const ArchitectureKeys& keys,
                      int64_t layers) {
  constexpr const char *kWindowDim = "attention.key_length_swa",
                       *kWindowRotated = "rope.dimension_count_swa",
                       *kPattern = "attention.sliding_window_pattern",
                       *kHeads = "attention.head_count_kv", *kScaling = "rope.scaling.type";
  const io::Gguf& gguf = *checkpoint.gguf();
  const int64_t dim = keys.Int("attention.key_length", kMaxHeadDim);
  const int64_t window_dim = keys.Int(kWindowDim, kMaxHeadDim);
  for (const char* key : {"attention.value_length_swa", kWindowRotated}) {
    if (keys.Int(key, kMaxHeadDim, window_dim) != window_dim) {
      keys.Refuse(key, fmt::format("only {} = {} is supported", kWindowDim, window_dim));
    }
  }
  if (keys.String(kScaling).value_or("none") != "none") {
    keys.Refuse(kScaling, "positions are not scaled");
  }
  if (!gguf.HasArray(keys.Name(kPattern))) keys.Fail(kPattern, "must be an array");
  std::vector<bool> windowed, whole;
  for (const int64_t window : gguf.Integers(keys.Name(kPattern))) {
    windowed.push_back(window != 0);
    whole.push_back(window == 0);
  }
  if (static_cast<int64_t>(windowed.size()) != layers) {
    keys.Fail(kPattern, fmt::format("must have {} elements", layers));
  }
  const std::vector<int64_t> heads = OfLayers(gguf, keys, kHeads, layers, kMaxHeads);
  const int64_t whole_heads = Common(keys, kHeads, heads, whole, heads.front());
  const int64_t window_heads = Common(keys, kHeads, heads, windowed, whole_heads);
  const int64_t shared = keys.Int("attention.shared_kv_layers", layers - 1, 0);
  json config = {
      {"head_dim", window_dim},
      {"num_key_value_heads", window_heads},
      {"sliding_window", keys.Int("attention.sliding_window", kMaxContext)},
      {"num_kv_shared_layers", shared},
      {"attention_k_eq_v", KeysAreValues(checkpoint, whole, layers - shared)},
      {"hidden_size_per_layer_input", keys.Int("embedding_length_per_layer_input", kMaxWidth, 0)},
      {"rope_parameters",
       {{"sliding_attention",
         {{"rope_type", "default"},
          {"rope_theta", keys.Number("rope.freq_base_swa").value_or(10000.0)}}},
        {"full_attention",
         {{"rope_type", "proportional"},
          {"rope_theta", keys.Number("rope.freq_base").value_or(1e6)},
          {"partial_rotary_factor", ProportionalShareOfGguf(checkpoint, dim)}}}}},
  };
  for (size_t layer = 0; layer < whole.size(); ++layer) {
    config["layer_types"].push_back(whole[layer] ? "full_attention" : "sliding_attention");
    if (!whole[layer]) continue;
    config["per_layer_config"][std::to_string(layer)] = {{"head_dim", dim},
                                                         {"num_key_value_heads", whole_heads}};
  }
  if (const auto cap = keys.Number("final_logit_softcapping"); cap.value_or(0) != 0) {
    config["final_logit_softcapping"] = *cap;
  }
  const auto inputs = checkpoint.Find("model.embed_tokens_per_layer.weight");
  if (inputs.info != nullptr) config["vocab_size_per_layer_input"] = inputs.info->shape.front();
  AddWidths(gguf, keys, layers, shared, &config);
  return config;
}

}  // namespace litecache::model
