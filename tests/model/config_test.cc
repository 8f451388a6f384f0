#include "model/config.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "expect_error.h"
#include "reference.h"
#include "temporary_directory.h"

namespace litecache::model {
namespace {

using nlohmann::json;

// Published configs, shortened: Llama 3.1 8B, Mistral 7B v0.3, Qwen 2.5 7B, Qwen 3 8B, OPT 6.7B.
json Llama() {
  return json::parse(R"({"architectures":["LlamaForCausalLM"],"attention_bias":false,
      "bos_token_id":128000,"eos_token_id":[128001,128008,128009],"hidden_act":"silu",
      "hidden_size":4096,"intermediate_size":14336,"max_position_embeddings":131072,
      "mlp_bias":false,"model_type":"llama","num_attention_heads":32,"num_hidden_layers":32,
      "num_key_value_heads":8,"pretraining_tp":1,"rms_norm_eps":1e-05,
      "rope_scaling":{"factor":8.0,"low_freq_factor":1.0,"high_freq_factor":4.0,
      "original_max_position_embeddings":8192,"rope_type":"llama3"},"rope_theta":500000.0,
      "tie_word_embeddings":false,"torch_dtype":"bfloat16","vocab_size":128256})");
}
json Mistral() {
  json config = Llama();
  config["architectures"] = {"MistralForCausalLM"};
  config["model_type"] = "mistral";
  config["sliding_window"] = nullptr;
  config["max_position_embeddings"] = 32768;
  config.erase("rope_scaling");
  return config;
}
json Qwen2() {
  return json::parse(R"({"architectures":["Qwen2ForCausalLM"],"hidden_act":"silu",
      "hidden_size":3584,"intermediate_size":18944,"max_position_embeddings":32768,
      "max_window_layers":28,"model_type":"qwen2","num_attention_heads":28,"num_hidden_layers":28,
      "num_key_value_heads":4,"rms_norm_eps":1e-06,"rope_theta":1000000.0,"sliding_window":131072,
      "tie_word_embeddings":false,"torch_dtype":"bfloat16","use_sliding_window":false,
      "vocab_size":152064})");
}
json Qwen3() {
  json config = Qwen2();
  config["architectures"] = {"Qwen3ForCausalLM"};
  config["model_type"] = "qwen3";
  config["head_dim"] = 128;
  return config;
}
json Opt() {
  return json::parse(R"({"_remove_final_layer_norm":false,"activation_function":"relu",
      "architectures":["OPTForCausalLM"],"bos_token_id":2,"do_layer_norm_before":true,
      "eos_token_id":2,"ffn_dim":16384,"hidden_size":4096,"max_position_embeddings":2048,
      "model_type":"opt","num_attention_heads":32,"num_hidden_layers":32,"pad_token_id":1,
      "torch_dtype":"float16","vocab_size":50272,"word_embed_proj_dim":4096})");
}

ModelConfig Parse(const json& config) {
  return ModelConfig::FromJson(config.dump(), "config.json");
}

json With(json config, const char* key, const json& value) {
  config[key] = value;
  return config;
}

json Without(json config, const char* key) {
  config.erase(key);
  return config;
}

TEST(ConfigTest, ReadsPublishedConfigs) {
  const ModelConfig llama = Parse(Llama());
  EXPECT_EQ(llama.family, Family::kLlama);
  EXPECT_EQ(llama.layers, 32);
  EXPECT_EQ(llama.head_dim, 128);
  EXPECT_EQ(llama.group(), 4);
  EXPECT_EQ(llama.max_context, 131072);
  EXPECT_EQ(llama.weight_dtype, DType::kBF16);
  EXPECT_EQ(llama.eos_ids, (std::vector<int32_t>{128001, 128008, 128009}));
  EXPECT_EQ(llama.bos_id, 128000);
  EXPECT_EQ(llama.rope.scaling, RopeScaling::kLlama3);
  EXPECT_EQ(llama.rope.original_context, 8192);
  EXPECT_FALSE(llama.attention_bias);
  EXPECT_EQ(llama.parameters(), 8'030'261'248);

  EXPECT_EQ(Parse(Mistral()).family, Family::kMistral);
  const ModelConfig qwen2 = Parse(Qwen2());
  EXPECT_TRUE(qwen2.attention_bias);
  EXPECT_FALSE(qwen2.attention_output_bias);
  EXPECT_EQ(qwen2.bos_id, -1);
  EXPECT_TRUE(qwen2.eos_ids.empty());
  EXPECT_EQ(qwen2.parameters(), 7'615'616'512);
  const ModelConfig qwen3 = Parse(Qwen3());
  EXPECT_TRUE(qwen3.qk_norm);
  EXPECT_EQ(qwen3.head_dim, 128);
  EXPECT_EQ(Parse(Without(Qwen3(), "head_dim")).head_dim, 128);
  const ModelConfig opt = Parse(Opt());
  EXPECT_EQ(opt.kv_heads, 32);
  EXPECT_TRUE(opt.tie_embeddings && opt.norm_before && opt.final_norm && opt.mlp_bias);
  EXPECT_EQ(opt.weight_dtype, DType::kF16);
  EXPECT_EQ(opt.parameters(), 6'658'473'984);
}

json OfFamily(const char* architecture) {
  json config = With(Without(Llama(), "rope_scaling"), "architectures", {architecture});
  return With(config, "num_hidden_layers", 8);
}

TEST(ConfigTest, DescribesWhatLayersAreMadeOf) {
  const ModelConfig olmo2 = Parse(OfFamily("Olmo2ForCausalLM"));
  EXPECT_EQ(olmo2.norms.attention_input, "");
  EXPECT_EQ(olmo2.norms.feed_forward_output, "post_feedforward_layernorm");
  EXPECT_TRUE(olmo2.wide_qk_norm);
  // Two norms of 4096 and one each of the queries, 4096, and keys, 1024, a layer.
  const ModelConfig llama = Parse(With(OfFamily("LlamaForCausalLM"), "num_hidden_layers", 8));
  EXPECT_EQ(olmo2.parameters() - llama.parameters(), 8 * (4096 + 1024));

  const ModelConfig phi3 = Parse(
      With(OfFamily("Phi3ForCausalLM"), "rope_parameters", {{"partial_rotary_factor", 0.75}}));
  EXPECT_TRUE(phi3.fused_qkv && phi3.fused_gate_up);
  EXPECT_EQ(phi3.rotated(), 96);
  EXPECT_EQ(Parse(OfFamily("Phi3ForCausalLM")).rotated(), 128);
  EXPECT_EQ(phi3.parameters(), llama.parameters());

  const ModelConfig smollm3 = Parse(Without(OfFamily("SmolLM3ForCausalLM"), "tie_word_embeddings"));
  EXPECT_TRUE(smollm3.tie_embeddings);
  for (int64_t i = 0; i < 8; ++i) EXPECT_EQ(smollm3.rotates(i), i % 4 != 3) << i;
  const ModelConfig listed =
      Parse(With(OfFamily("SmolLM3ForCausalLM"), "no_rope_layers", {0, 1, 1, 1, 1, 1, 1, 0}));
  for (int64_t i = 0; i < 8; ++i) EXPECT_EQ(listed.rotates(i), i != 0 && i != 7) << i;

  const ModelConfig glm4 = Parse(OfFamily("Glm4ForCausalLM"));
  EXPECT_EQ(glm4.rotated(), 64);
  EXPECT_TRUE(glm4.rotary_neighbours && glm4.fused_gate_up && !glm4.fused_qkv);
  EXPECT_EQ(glm4.parameters() - llama.parameters(), 8 * 2 * 4096);

  json scaled = With(OfFamily("GraniteForCausalLM"), "embedding_multiplier", 12.0);
  scaled = With(With(scaled, "residual_multiplier", 0.22), "attention_multiplier", 0.015625);
  const ModelConfig granite = Parse(With(scaled, "logits_scaling", 8));
  EXPECT_EQ(granite.embedding_scale, 12.0);
  EXPECT_EQ(granite.residual_scale, 0.22);
  EXPECT_EQ(granite.attention_scale, 0.015625);
  EXPECT_EQ(granite.logit_scale, 0.125);
}

TEST(ConfigTest, SlidingWindows) {
  const auto windows = [](const ModelConfig& config) {
    return std::ranges::count(config.windowed, true);
  };
  const ModelConfig mistral = Parse(With(Mistral(), "sliding_window", 4096));
  EXPECT_EQ(mistral.window, 4096);
  EXPECT_EQ(windows(mistral), 32);
  EXPECT_EQ(windows(Parse(With(OfFamily("Phi3ForCausalLM"), "sliding_window", 2047))), 8);
  json qwen = With(With(Qwen2(), "use_sliding_window", true), "sliding_window", 4096);
  qwen["max_window_layers"] = 20;
  const ModelConfig above = Parse(qwen);
  EXPECT_EQ(windows(above), 8);
  EXPECT_FALSE(above.has_window(19));
  EXPECT_TRUE(above.has_window(20));
  EXPECT_EQ(above.kv_layout(DType::kBF16).token_bytes(),
            Parse(Qwen2()).kv_layout(DType::kBF16).token_bytes() / 28 * 20);
  json types = With(OfFamily("Olmo3ForCausalLM"), "sliding_window", 64);
  EXPECT_EQ(windows(Parse(types)), 6);  // three layers of four
  types["layer_types"] =
      json::array({"full_attention", "sliding_attention", "full_attention", "full_attention",
                   "full_attention", "full_attention", "full_attention", "full_attention"});
  EXPECT_EQ(windows(Parse(types)), 1);
  EXPECT_TRUE(Parse(types).has_window(1));
  types["layer_types"][2] = "linear_attention";
  EXPECT_ERROR(Parse(types), Unsupported, "layer_types", "linear_attention");
  types["layer_types"] = json::array({"full_attention"});
  EXPECT_ERROR(Parse(types), FileError, "layer_types", "8");
}

TEST(ConfigTest, Gemma3) {
  // Gemma 3 4B's config, which says only what differs from Transformers' defaults.
  const ModelConfig gemma = Parse(json::parse(R"({
      "architectures": ["Gemma3ForConditionalGeneration"], "eos_token_id": [1, 106],
      "model_type": "gemma3", "torch_dtype": "bfloat16", "vision_config": {"hidden_size": 1152},
      "text_config": {"hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text",
        "num_hidden_layers": 34, "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024}})"));
  EXPECT_EQ(gemma.architecture, "Gemma3ForCausalLM");
  EXPECT_EQ(gemma.q_heads, 8);
  EXPECT_EQ(gemma.kv_heads, 4);
  EXPECT_EQ(gemma.head_dim, 256);
  EXPECT_EQ(gemma.vocab, 262208);
  EXPECT_EQ(gemma.max_context, 131072);
  EXPECT_EQ(gemma.eos_ids, (std::vector<int32_t>{1, 106}));
  EXPECT_EQ(gemma.weight_dtype, DType::kBF16);
  EXPECT_EQ(gemma.window, 1024);
  EXPECT_EQ(std::ranges::count(gemma.windowed, false), 5);
  EXPECT_FALSE(gemma.has_window(5));
  EXPECT_EQ(gemma.rope.theta, 1e6);
  EXPECT_EQ(gemma.rope.scaling, RopeScaling::kLinear);
  EXPECT_EQ(gemma.window_rope->theta, 1e4);
  EXPECT_EQ(gemma.window_rope->scaling, RopeScaling::kNone);
  EXPECT_EQ(*gemma.attention_scale, 1.0 / 16);
  EXPECT_TRUE(gemma.tie_embeddings);
  EXPECT_ERROR(Parse(With(OfFamily("Gemma3ForCausalLM"), "final_logit_softcapping", 30.0)),
               Unsupported, "final_logit_softcapping");
  EXPECT_ERROR(Parse(With(OfFamily("Gemma3ForCausalLM"), "hidden_activation", "gelu")), Unsupported,
               "hidden_activation");
}

TEST(ConfigTest, RefusesWhatFamiliesDoNotSupport) {
  EXPECT_ERROR(Parse(With(OfFamily("Phi3ForCausalLM"), "rope_scaling",
                          {{"type", "longrope"}, {"short_factor", {1.0}}})),
               Unsupported, "rope_scaling.type", "longrope");
  for (const double share : {0.0, 1.5, 0.03}) {  // 0.03 * 128: three dimensions
    EXPECT_ERROR(Parse(With(OfFamily("Glm4ForCausalLM"), "partial_rotary_factor", share)),
                 FileError, "partial_rotary_factor", "128");
  }
  EXPECT_ERROR(Parse(With(OfFamily("SmolLM3ForCausalLM"), "no_rope_layers", {1, 0})), FileError,
               "no_rope_layers", "8");
  EXPECT_ERROR(Parse(With(OfFamily("GraniteForCausalLM"), "logits_scaling", 0)), FileError,
               "logits_scaling");
}

TEST(ConfigTest, DefaultsAndSpellings) {
  EXPECT_EQ(Parse(Without(Llama(), "num_key_value_heads")).kv_heads, 32);
  EXPECT_EQ(Parse(With(Llama(), "num_key_value_heads", nullptr)).kv_heads, 32);
  EXPECT_EQ(Parse(With(Llama(), "head_dim", 64)).head_dim, 64);
  EXPECT_EQ(Parse(Without(Llama(), "architectures")).family, Family::kLlama);
  EXPECT_EQ(Parse(With(Llama(), "eos_token_id", 2)).eos_ids, std::vector<int32_t>{2});
  EXPECT_TRUE(Parse(With(Llama(), "eos_token_id", nullptr)).eos_ids.empty());
  EXPECT_EQ(Parse(With(Without(Llama(), "torch_dtype"), "dtype", "float16")).weight_dtype,
            DType::kF16);
  EXPECT_EQ(Parse(With(Llama(), "hidden_act", "swish")).hidden, 4096);
  EXPECT_TRUE(Parse(With(Llama(), "attention_bias", true)).attention_output_bias);
  EXPECT_TRUE(Parse(With(Llama(), "tie_word_embeddings", true)).tie_embeddings);
  // Windows that cover the context or are disabled.
  EXPECT_EQ(Parse(With(Mistral(), "sliding_window", 32768)).layers, 32);
  EXPECT_EQ(Parse(With(With(Qwen2(), "use_sliding_window", true), "sliding_window", 4096)).layers,
            28);  // all 28 layers are below max_window_layers
  EXPECT_EQ(Parse(With(Llama(), "partial_rotary_factor", 1.0)).layers, 32);
  // rope_scaling comes before rope_parameters; an empty one does not count.
  json both = With(Llama(), "rope_parameters", {{"rope_type", "linear"}, {"factor", 2.0}});
  EXPECT_EQ(Parse(both).rope.scaling, RopeScaling::kLlama3);
  both["rope_scaling"] = json::object();
  EXPECT_EQ(Parse(both).rope.scaling, RopeScaling::kLinear);
  EXPECT_EQ(Parse(both).rope.theta, 500000.0);
  both["rope_parameters"]["rope_theta"] = 123.0;
  EXPECT_EQ(Parse(both).rope.theta, 123.0);
}

TEST(ConfigTest, QuantizedWeights) {
  EXPECT_FALSE(Parse(Llama()).quantized);
  json gptq = {{"quant_method", "gptq"}, {"bits", 4}, {"group_size", -1}, {"desc_act", true}};
  const ModelConfig config = Parse(With(Llama(), "quantization_config", gptq));
  EXPECT_TRUE(config.quantized);
  EXPECT_EQ(config.quantization->bits, 4);
  EXPECT_EQ(config.quantization->scale_cols, 0);
  EXPECT_TRUE(config.quantization->reordered);
  EXPECT_TRUE(config.quantization->zeros_less_one);
  EXPECT_FALSE(config.quantization->symmetric);
  gptq.update({{"group_size", 128}, {"sym", true}, {"checkpoint_format", "gptq_v2"}});
  const auto second = *Parse(With(Llama(), "quantization_config", gptq)).quantization;
  EXPECT_EQ(second.scale_cols, 128);
  EXPECT_TRUE(second.symmetric);
  EXPECT_FALSE(second.zeros_less_one);
  const auto fp8 = *Parse(With(Llama(), "quantization_config",
                               {{"quant_method", "fp8"}, {"weight_block_size", {128, 64}}}))
                        .quantization;
  EXPECT_EQ(fp8.scale_name, "weight_scale_inv");
  EXPECT_EQ(fp8.scale_rows, 128);
  EXPECT_EQ(fp8.scale_cols, 64);
}

TEST(ConfigTest, RefusesWhatIsNotSupported) {
  EXPECT_ERROR(Parse(With(Llama(), "architectures", {"GemmaForCausalLM"})), Unsupported,
               "config.json", "'architectures'", "GemmaForCausalLM", "LlamaForCausalLM",
               "Qwen3ForCausalLM", "OPTForCausalLM");
  EXPECT_ERROR(Parse(With(Without(Llama(), "architectures"), "model_type", "phi")), Unsupported,
               "phi", "MistralForCausalLM");
  EXPECT_ERROR(Parse(With(Llama(), "quantization_config", {{"quant_method", "hqq"}})), Unsupported,
               "'quantization_config.quant_method' = \"hqq\"", "gptq");
  EXPECT_ERROR(Parse(With(Llama(), "torch_dtype", "float8_e4m3fn")), Unsupported, "float8_e4m3fn");
  EXPECT_ERROR(Parse(With(Llama(), "hidden_act", "gelu")), Unsupported, "'hidden_act' = \"gelu\"");
  EXPECT_ERROR(Parse(With(Llama(), "partial_rotary_factor", 0.5)), Unsupported,
               "'partial_rotary_factor' = 0.5");
  EXPECT_ERROR(Parse(With(Qwen2(), "layer_types", {"full_attention", "sliding_attention"})),
               Unsupported, "layer_types", "sliding_attention");
  EXPECT_ERROR(Parse(With(Opt(), "activation_function", "gelu")), Unsupported, "gelu");
  EXPECT_ERROR(Parse(With(Opt(), "enable_bias", false)), Unsupported, "'enable_bias' = false");
  EXPECT_ERROR(Parse(With(Opt(), "layer_norm_elementwise_affine", false)), Unsupported,
               "layer_norm_elementwise_affine");
  EXPECT_ERROR(Parse(With(Opt(), "num_attention_heads", 4096)), Unsupported, "head_dim = 1");
  for (const char* type : {"dynamic", "longrope", "su", "mrope"}) {
    EXPECT_ERROR(Parse(With(Llama(), "rope_scaling", {{"rope_type", type}, {"factor", 2}})),
                 Unsupported, "rope_scaling.rope_type", type, "llama3");
    EXPECT_ERROR(Parse(With(Llama(), "rope_scaling", {{"type", type}, {"factor", 2}})), Unsupported,
                 "rope_scaling.type", type);
  }
  EXPECT_ERROR(Parse(With(Without(Llama(), "rope_scaling"), "rope_parameters",
                          {{"full_attention", {{"rope_theta", 1e4}}}})),
               Unsupported, "rope_parameters.full_attention");
  EXPECT_ERROR(Parse(With(Without(Llama(), "rope_scaling"), "rope_parameters",
                          {{"rope_type", "default"}, {"partial_rotary_factor", 0.25}})),
               Unsupported, "rope_parameters.partial_rotary_factor");
}

TEST(ConfigTest, RefusesMissingFields) {
  for (const char* key : {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
                          "num_attention_heads", "max_position_embeddings"}) {
    EXPECT_ERROR(Parse(Without(Llama(), key)), FileError, std::string("'") + key + "' is missing");
    EXPECT_ERROR(Parse(With(Llama(), key, nullptr)), FileError, key, "missing");
  }
  EXPECT_ERROR(Parse(Without(Opt(), "ffn_dim")), FileError, "'ffn_dim' is missing");
  EXPECT_ERROR(Parse(json::object()), FileError, "architectures", "model_type", "LlamaForCausalLM");
  EXPECT_ERROR(Parse(With(Llama(), "rope_scaling", {{"type", "linear"}})), FileError,
               "rope_scaling.factor", "missing");
  EXPECT_ERROR(Parse(With(Llama(), "rope_scaling", {{"rope_type", "llama3"}, {"factor", 8}})),
               FileError, "rope_scaling.low_freq_factor");
}

// Every size field with every kind of invalid value: the error must name the field and the value.
TEST(ConfigTest, RefusesAbsurdValues) {
  const std::vector<json> nonsense = {0,
                                      -1,
                                      -9223372036854775807,
                                      9223372036854775807,
                                      18446744073709551615u,
                                      1e18,
                                      2.5,
                                      "4096",
                                      true,
                                      json::array({1}),
                                      json::object(),
                                      "NaN",
                                      1e308};
  for (const char* key :
       {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
        "num_attention_heads", "num_key_value_heads", "head_dim", "max_position_embeddings"}) {
    for (const json& value : nonsense) {
      EXPECT_ERROR(Parse(With(Llama(), key, value)), FileError, std::string("'") + key + "'");
    }
  }
  for (const char* key : {"rms_norm_eps", "rope_theta"}) {
    for (const json& value : {json(-1), json("x"), json(1e300), json(true), json::array()}) {
      EXPECT_ERROR(Parse(With(Llama(), key, value)), FileError, key);
    }
  }
  EXPECT_ERROR(Parse(With(Llama(), "num_key_value_heads", 5)), FileError,
               "'num_key_value_heads' = 5", "divide", "32");
  EXPECT_ERROR(Parse(With(Llama(), "hidden_size", 4097)), FileError, "'hidden_size' = 4097");
  EXPECT_ERROR(Parse(With(Llama(), "head_dim", 65)), FileError, "head_dim = 65", "even");
  EXPECT_ERROR(Parse(With(Llama(), "hidden_size", 32)), FileError, "head_dim = 1");
  EXPECT_ERROR(Parse(With(Llama(), "eos_token_id", "</s>")), FileError, "'eos_token_id'");
  EXPECT_ERROR(Parse(With(Llama(), "tie_word_embeddings", "yes")), FileError,
               "'tie_word_embeddings'");
  EXPECT_ERROR(Parse(With(Llama(), "architectures", json::array())), FileError, "architectures");
  EXPECT_ERROR(Parse(With(Llama(), "architectures", "LlamaForCausalLM")), FileError, "list");
  EXPECT_ERROR(Parse(With(Llama(), "rope_scaling", 2.0)), FileError, "rope_scaling");
  EXPECT_ERROR(Parse(With(Llama(), "rope_scaling", {{"type", 3}})), FileError, "rope_scaling.type");
  for (const json& factor : {json(0), json(-4), json(1e300), json("8")}) {
    EXPECT_ERROR(Parse(With(Llama(), "rope_scaling", {{"type", "linear"}, {"factor", factor}})),
                 FileError, "rope_scaling.factor");
    EXPECT_ERROR(Parse(With(Llama(), "rope_scaling", {{"type", "yarn"}, {"factor", factor}})),
                 FileError, "rope_scaling.factor");
  }
  json scaling = Llama()["rope_scaling"];
  scaling["high_freq_factor"] = 1.0;
  EXPECT_ERROR(Parse(With(Llama(), "rope_scaling", scaling)), FileError, "high_freq_factor",
               "low_freq_factor");
  scaling = Llama()["rope_scaling"];
  scaling["original_max_position_embeddings"] = 0;
  EXPECT_ERROR(Parse(With(Llama(), "rope_scaling", scaling)), FileError,
               "rope_scaling.original_max_position_embeddings");
  EXPECT_ERROR(Parse(With(With(Llama(), "rope_scaling", {{"type", "yarn"}, {"factor", 2}}),
                          "rope_theta", 1.0)),
               FileError, "rope_theta");
  EXPECT_ERROR(ModelConfig::FromJson("{\"vocab_size\": 1e999}", "c"), FileError, "1e999");
  EXPECT_ERROR(ModelConfig::FromJson("{\"vocab_size\": NaN}", "c"), FileError, "c:1:");
  EXPECT_ERROR(ModelConfig::FromJson("", "c"), FileError, "not valid JSON");
}

// Values that pass the checks are safe to compute with: frequencies are finite, sizes do not
// overflow.
TEST(ConfigTest, LargestValuesDoNotOverflow) {
  json config = Llama();
  config["vocab_size"] = int64_t{1} << 24;
  config["hidden_size"] = int64_t{1} << 20;
  config["intermediate_size"] = int64_t{1} << 20;
  config["num_hidden_layers"] = 1024;
  config["num_attention_heads"] = 4096;
  config["num_key_value_heads"] = 4096;
  config["head_dim"] = 1024;
  config["max_position_embeddings"] = int64_t{1} << 30;
  const ModelConfig parsed = Parse(config);
  EXPECT_GT(parsed.parameters(), int64_t{1} << 50);
  EXPECT_GT(parsed.kv_layout(DType::kF32).token_bytes(), uint64_t{1} << 34);
  for (const float frequency : MakeRopeTable(parsed.rope, parsed.head_dim).inv_freq) {
    EXPECT_TRUE(std::isfinite(frequency));
  }
}

TEST(ConfigTest, FilesThatCannotBeRead) {
  const ::litecache::testing::TemporaryDirectory directory;
  EXPECT_ERROR(ModelConfig::FromModel(directory.path()), FileError, "config.json", "No such file");
  CpuDevice device(1);
  EXPECT_ERROR(LoadDecoder(device, directory.path(), {}), FileError, "config.json", "No such file");
}

}  // namespace
}  // namespace litecache::model
