#include "model/config.h"

#include <gtest/gtest.h>

#include "expect_error.h"
#include "model/config_testing.h"
#include "reference.h"
#include "temporary_directory.h"

namespace litecache::model {
namespace {

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

TEST(ConfigTest, RefusesWhatFamiliesDoNotSupport) {
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
  for (const char* type : {"dynamic", "mrope"}) {
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
