// Published configs, and changes of them, for the tests of config.json.
#pragma once

#include <nlohmann/json.hpp>

#include "model/config.h"

namespace litecache::model {

using nlohmann::json;

// Published configs, shortened: Llama 3.1 8B, Mistral 7B v0.3, Qwen 2.5 7B, Qwen 3 8B, OPT 6.7B.
inline json Llama() {
  return json::parse(R"({"architectures":["LlamaForCausalLM"],"attention_bias":false,
      "bos_token_id":128000,"eos_token_id":[128001,128008,128009],"hidden_act":"silu",
      "hidden_size":4096,"intermediate_size":14336,"max_position_embeddings":131072,
      "mlp_bias":false,"model_type":"llama","num_attention_heads":32,"num_hidden_layers":32,
      "num_key_value_heads":8,"pretraining_tp":1,"rms_norm_eps":1e-05,
      "rope_scaling":{"factor":8.0,"low_freq_factor":1.0,"high_freq_factor":4.0,
      "original_max_position_embeddings":8192,"rope_type":"llama3"},"rope_theta":500000.0,
      "tie_word_embeddings":false,"torch_dtype":"bfloat16","vocab_size":128256})");
}

inline json Mistral() {
  json config = Llama();
  config["architectures"] = {"MistralForCausalLM"};
  config["model_type"] = "mistral";
  config["sliding_window"] = nullptr;
  config["max_position_embeddings"] = 32768;
  config.erase("rope_scaling");
  return config;
}

inline json Qwen2() {
  return json::parse(R"({"architectures":["Qwen2ForCausalLM"],"hidden_act":"silu",
      "hidden_size":3584,"intermediate_size":18944,"max_position_embeddings":32768,
      "max_window_layers":28,"model_type":"qwen2","num_attention_heads":28,"num_hidden_layers":28,
      "num_key_value_heads":4,"rms_norm_eps":1e-06,"rope_theta":1000000.0,"sliding_window":131072,
      "tie_word_embeddings":false,"torch_dtype":"bfloat16","use_sliding_window":false,
      "vocab_size":152064})");
}

inline json Qwen3() {
  json config = Qwen2();
  config["architectures"] = {"Qwen3ForCausalLM"};
  config["model_type"] = "qwen3";
  config["head_dim"] = 128;
  return config;
}

inline json Opt() {
  return json::parse(R"({"_remove_final_layer_norm":false,"activation_function":"relu",
      "architectures":["OPTForCausalLM"],"bos_token_id":2,"do_layer_norm_before":true,
      "eos_token_id":2,"ffn_dim":16384,"hidden_size":4096,"max_position_embeddings":2048,
      "model_type":"opt","num_attention_heads":32,"num_hidden_layers":32,"pad_token_id":1,
      "torch_dtype":"float16","vocab_size":50272,"word_embed_proj_dim":4096})");
}

inline ModelConfig Parse(const json& config) {
  return ModelConfig::FromJson(config.dump(), "config.json");
}

inline json With(json config, const char* key, const json& value) {
  config[key] = value;
  return config;
}

inline json Without(json config, const char* key) {
  config.erase(key);
  return config;
}

inline json OfFamily(const char* architecture) {
  json config = With(Without(Llama(), "rope_scaling"), "architectures", {architecture});
  return With(config, "num_hidden_layers", 8);
}

}  // namespace litecache::model
