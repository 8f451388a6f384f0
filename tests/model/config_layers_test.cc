// What config.json says of layers: their parts, windows, experts.
#include <gtest/gtest.h>

#include "expect_error.h"
#include "model/config_testing.h"
#include "model/families.h"

namespace litecache::model {
namespace {

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

  const ModelConfig seed = Parse(Without(OfFamily("SeedOssForCausalLM"), "attention_bias"));
  EXPECT_TRUE(seed.attention_bias && !seed.attention_output_bias && !seed.mlp_bias);
  EXPECT_EQ(seed.parameters() - llama.parameters(), 8 * (seed.q_width() + 2 * seed.kv_width()));

  const ModelConfig ernie = Parse(With(OfFamily("Ernie4_5ForCausalLM"), "use_bias", true));
  EXPECT_TRUE(ernie.rotary_neighbours && ernie.attention_bias && ernie.attention_output_bias &&
              ernie.mlp_bias);
  EXPECT_TRUE(
      Parse(Without(OfFamily("Ernie4_5ForCausalLM"), "tie_word_embeddings")).tie_embeddings);

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
  // In SmolLM3's layers without RoPE.
  json smollm3 = With(OfFamily("SmolLM3ForCausalLM"), "sliding_window", 64);
  EXPECT_EQ(windows(Parse(smollm3)), 0);
  smollm3["use_sliding_window"] = true;
  EXPECT_EQ(windows(Parse(smollm3)), 2);
  EXPECT_TRUE(Parse(smollm3).has_window(3));
  smollm3["layer_types"] = json::array({"sliding_attention"});
  for (int i = 0; i < 7; ++i) smollm3["layer_types"].push_back("full_attention");
  EXPECT_EQ(windows(Parse(smollm3)), 1);
}

TEST(ConfigTest, Exaone4) {
  // Without windows, all layers have RoPE.
  json config = OfFamily("Exaone4ForCausalLM");
  EXPECT_TRUE(Parse(config).uniform() && Parse(config).rotates(3));
  EXPECT_TRUE(Parse(config).qk_norm && Parse(config).norms.attention_input.empty());
  const auto windows = [](const ModelConfig& model) {
    std::string letters;
    for (int64_t i = 0; i < model.layers; ++i) {
      letters += model.has_window(i) ? 'L' : 'G';
      EXPECT_EQ(model.rotates(i), model.has_window(i)) << i;
    }
    return letters;
  };
  config["sliding_window"] = 64;
  EXPECT_EQ(windows(Parse(config)), "LLLGLLLG");
  config["sliding_window_pattern"] = 2;
  EXPECT_EQ(windows(Parse(config)), "LGLGLGLG");
  config["sliding_window_pattern"] = "LLG";
  EXPECT_EQ(windows(Parse(config)), "LLGLLGLL");
  EXPECT_ERROR(Parse(With(config, "sliding_window_pattern", "LXG")), FileError,
               "sliding_window_pattern", "L and G");
  config["layer_types"] = json::array({"full_attention"});
  for (int i = 0; i < 7; ++i) config["layer_types"].push_back("sliding_attention");
  EXPECT_EQ(windows(Parse(config)), "GLLLLLLL");
  // Windows that no context is longer than leave RoPE as it is.
  config["sliding_window"] = 1 << 24;
  EXPECT_TRUE(Parse(config).uniform() && !Parse(config).rotates(0) && Parse(config).rotates(1));
}

TEST(ConfigTest, CorrectedRouters) {
  const auto with = [](json config, const json& fields) {
    config.update(fields);
    return config;
  };
  // GLM-4.5-Air's fields of experts.
  const json air = with(OfFamily("Glm4MoeForCausalLM"), {{"n_routed_experts", 128},
                                                         {"num_experts_per_tok", 8},
                                                         {"moe_intermediate_size", 1408},
                                                         {"n_shared_experts", 1},
                                                         {"first_k_dense_replace", 1},
                                                         {"n_group", 1},
                                                         {"topk_group", 1},
                                                         {"norm_topk_prob", true},
                                                         {"routed_scaling_factor", 2.5},
                                                         {"use_qk_norm", false},
                                                         {"attention_bias", true}});
  const ModelConfig glm = Parse(air);
  EXPECT_TRUE(glm.experts.sigmoid && glm.experts.normalized && !glm.experts.gates_shared());
  EXPECT_EQ(glm.experts.scale, 2.5f);
  EXPECT_EQ(glm.experts.shared, 1408);
  EXPECT_EQ(glm.rotated(), glm.head_dim / 2);
  EXPECT_TRUE(!glm.has_experts(0) && glm.has_experts(1));
  EXPECT_ERROR(Parse(With(air, "n_group", 8)), Unsupported, "n_group");
  EXPECT_ERROR(Parse(With(air, "n_shared_experts", -1)), FileError, "n_shared_experts");

  const json ernie = with(OfFamily("Ernie4_5_MoeForCausalLM"), {{"moe_num_experts", 64},
                                                                {"moe_k", 6},
                                                                {"moe_intermediate_size", 1536},
                                                                {"moe_num_shared_experts", 2},
                                                                {"moe_layer_start_index", 1},
                                                                {"moe_layer_end_index", 6},
                                                                {"moe_layer_interval", 1}});
  const ModelConfig a3b = Parse(ernie);
  EXPECT_TRUE(!a3b.experts.sigmoid && a3b.experts.normalized);
  EXPECT_EQ(a3b.experts.shared, 2 * 1536);
  for (int64_t i = 0; i < 8; ++i) EXPECT_EQ(a3b.has_experts(i), i >= 1 && i <= 6) << i;
  EXPECT_TRUE(Parse(With(ernie, "moe_layer_end_index", -1)).has_experts(7));
  EXPECT_ERROR(Parse(With(ernie, "use_bias", true)), Unsupported, "use_bias");
  EXPECT_ERROR(Parse(With(ernie, "moe_k", 65)), FileError, "moe_k");

  const json minimax =
      with(OfFamily("MiniMaxM2ForCausalLM"), {{"num_local_experts", 16},
                                              {"num_experts_per_tok", 8},
                                              {"intermediate_size", 1536},
                                              {"rotary_dim", 64},
                                              {"attn_type_list", json::array({1, 1, 1, 1})}});
  const ModelConfig m2 = Parse(minimax);
  EXPECT_TRUE(m2.wide_qk_norm && m2.experts.sigmoid && m2.experts.shared == 0);
  EXPECT_EQ(m2.rotated(), 64);
  EXPECT_ERROR(Parse(With(minimax, "attn_type_list", json::array({1, 0}))), Unsupported,
               "attn_type_list");
}

TEST(ConfigTest, Mistral3) {
  // Ministral 3 8B's config, shortened.
  const json whole = json::parse(R"({"architectures": ["Mistral3ForConditionalGeneration"],
      "dtype": "bfloat16", "model_type": "mistral3", "vision_config": {"hidden_size": 1024},
      "quantization_config": {"activation_scheme": "static", "quant_method": "fp8",
        "modules_to_not_convert": ["lm_head"], "weight_block_size": null},
      "text_config": {"head_dim": 128, "hidden_act": "silu", "hidden_size": 4096,
        "intermediate_size": 14336, "max_position_embeddings": 262144, "model_type": "ministral3",
        "num_attention_heads": 32, "num_hidden_layers": 34, "num_key_value_heads": 8,
        "rms_norm_eps": 1e-05, "sliding_window": null, "vocab_size": 131072,
        "rope_parameters": {"beta_fast": 32.0, "beta_slow": 1.0, "factor": 16.0,
          "llama_4_scaling_beta": 0.1, "mscale": 1.0, "mscale_all_dim": 1.0,
          "original_max_position_embeddings": 16384, "rope_theta": 1000000.0, "rope_type": "yarn",
          "type": "yarn"}}})");
  const ModelConfig config = Parse(whole);
  EXPECT_EQ(config.architecture, "Ministral3ForCausalLM");
  EXPECT_EQ(config.rope.query_growth, 0.1);
  EXPECT_EQ(config.rope.original_context, 16384);
  EXPECT_EQ(MakeRopeTable(config.rope, 128).attention_factor, 1);
  EXPECT_EQ(config.max_context, 262144);
  EXPECT_TRUE(config.quantized && config.uniform() && !config.tie_embeddings);
  // Mistral Small 3.1 is of another family, and so may others be.
  json small = whole;
  small["text_config"]["model_type"] = "mistral";
  EXPECT_EQ(Parse(small).architecture, "MistralForCausalLM");
  EXPECT_EQ(Parse(small).rope.query_growth, 0);
  small["text_config"].erase("model_type");
  EXPECT_EQ(Parse(small).architecture, "MistralForCausalLM");
  small["text_config"]["model_type"] = "mistral4";
  EXPECT_ERROR(Parse(small), Unsupported, "'model_type' = \"mistral4\"");
  small["text_config"]["model_type"] = "ministral3";
  small["text_config"]["rope_parameters"]["rope_type"] = "default";
  EXPECT_ERROR(Parse(small), FileError, "rope_parameters.llama_4_scaling_beta");
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

TEST(ConfigTest, Gemma2) {
  // Gemma 2 9B's config, shortened.
  const json gemma = json::parse(R"({"architectures":["Gemma2ForCausalLM"],
      "attention_bias":false,"attn_logit_softcapping":50.0,"eos_token_id":1,
      "final_logit_softcapping":30.0,"head_dim":256,"hidden_act":"gelu_pytorch_tanh",
      "hidden_activation":"gelu_pytorch_tanh","hidden_size":3584,"intermediate_size":14336,
      "max_position_embeddings":8192,"model_type":"gemma2","num_attention_heads":16,
      "num_hidden_layers":42,"num_key_value_heads":8,"query_pre_attn_scalar":256,
      "rms_norm_eps":1e-06,"rope_theta":10000.0,"sliding_window":4096,"sliding_window_size":4096,
      "torch_dtype":"float32","vocab_size":256000})");
  const ModelConfig config = Parse(gemma);
  EXPECT_EQ(config.attention_cap, 50);
  EXPECT_EQ(config.logit_cap, 30);
  EXPECT_EQ(*config.attention_scale, 1.0 / 16);
  EXPECT_TRUE(config.tie_embeddings && !config.qk_norm && !config.window_rope);
  EXPECT_EQ(config.window, 4096);
  for (int64_t layer = 0; layer < 42; ++layer) EXPECT_EQ(config.has_window(layer), layer % 2 == 0);
  EXPECT_EQ(config.parameters(), 9'241'705'984);
  for (const char* key : {"attn_logit_softcapping", "final_logit_softcapping", "sliding_window"}) {
    EXPECT_ERROR(Parse(Without(gemma, key)), FileError, key, "missing");
    EXPECT_ERROR(Parse(With(gemma, key, -1)), FileError, key);
  }
  EXPECT_ERROR(Parse(With(gemma, "use_bidirectional_attention", true)), Unsupported,
               "use_bidirectional_attention");
  EXPECT_ERROR(CheckRunsOnGpu(config), Unsupported, "Gemma2ForCausalLM", "--device cpu");
}

TEST(ConfigTest, Gemma4) {
  // A model that also reads images: windows in five layers of six.
  json text = json::parse(R"({"attention_k_eq_v":true,"enable_moe_block":false,
      "final_logit_softcapping":30.0,"global_head_dim":512,"head_dim":256,
      "hidden_activation":"gelu_pytorch_tanh","hidden_size":3840,"hidden_size_per_layer_input":0,
      "intermediate_size":15360,"max_position_embeddings":131072,"model_type":"gemma4_text",
      "num_attention_heads":16,"num_global_key_value_heads":1,"num_hidden_layers":48,
      "num_key_value_heads":8,"num_kv_shared_layers":0,"rms_norm_eps":1e-06,"rope_parameters":{
      "full_attention":{"partial_rotary_factor":0.25,"rope_theta":1000000.0,
      "rope_type":"proportional"},"sliding_attention":{"rope_theta":10000.0,
      "rope_type":"default"}},"sliding_window":1024,"use_bidirectional_attention":"vision",
      "vocab_size":262144})");
  const auto whole = [](const json& of) {
    return json{{"architectures", {"Gemma4ForConditionalGeneration"}},
                {"dtype", "bfloat16"},
                {"model_type", "gemma4"},
                {"text_config", of}};
  };
  const ModelConfig config = Parse(whole(text));
  EXPECT_EQ(config.family, Family::kGemma4);
  EXPECT_EQ(config.weight_dtype, DType::kBF16);
  EXPECT_EQ(config.attention_cap, 0);
  EXPECT_EQ(config.logit_cap, 30);
  const kv::Layout layout = config.kv_layout(DType::kBF16);
  EXPECT_EQ(layout.token_bytes(), 8u * 2 * 512 * 2);
  EXPECT_EQ(layout.window_head_dim, 256);
  EXPECT_EQ(layout.window_kv_heads, 8);
  EXPECT_EQ(config.q_width_of(0), 4096);
  EXPECT_EQ(config.q_width_of(5), 8192);
  EXPECT_EQ(config.kv_width_of(5), 512);
  const RopeTable rope = MakeRopeTable(config.rope, config.head_dim);
  EXPECT_EQ(std::ranges::count(rope.inv_freq, 0), 192);
  EXPECT_EQ(config.window_rope->theta, 1e4);
  EXPECT_ERROR(CheckRunsOnGpu(config), Unsupported, "Gemma4ForCausalLM", "--device cpu");

  const auto refused = [&](const char* key, const json& value) {
    EXPECT_ERROR(Parse(whole(With(text, key, value))), Error, key);
  };
  refused("enable_moe_block", true);
  refused("use_bidirectional_attention", "all");
  refused("num_global_key_value_heads", 3);
  refused("global_head_dim", 511);
  refused("num_kv_shared_layers", 47);  // the first layer is the only one left: with a window
  refused("num_hidden_layers", 47);     // the last layer would have a window
  refused("rope_parameters", nullptr);
  refused("sliding_window", nullptr);
  text["hidden_size_per_layer_input"] = 256;
  refused("vocab_size_per_layer_input", 262143);

  // Of the last layers of a small model, each attends the rows of the last one of its kind.
  text["num_kv_shared_layers"] = 30;
  text["use_double_wide_mlp"] = true;
  ModelConfig shares = Parse(whole(text));
  EXPECT_EQ(shares.rows_of(17), 17);
  EXPECT_EQ(shares.rows_of(18), 16);
  EXPECT_EQ(shares.rows_of(47), 17);
  EXPECT_EQ(shares.intermediate_of(17), 15360);
  EXPECT_EQ(shares.intermediate_of(18), 30720);
  shares.KeepLayers(20);
  EXPECT_EQ(shares.shared_layers, 2);
  EXPECT_EQ(shares.rows_of(19), 16);
}

TEST(ConfigTest, GptOss) {
  // gpt-oss-20b's config, shortened.
  json gpt = json::parse(R"({"architectures":["GptOssForCausalLM"],"attention_bias":true,
      "head_dim":64,"hidden_act":"silu","hidden_size":2880,"intermediate_size":2880,
      "max_position_embeddings":131072,"model_type":"gpt_oss","num_attention_heads":64,
      "num_experts_per_tok":4,"num_hidden_layers":24,"num_key_value_heads":8,
      "num_local_experts":32,"rms_norm_eps":1e-05,"rope_scaling":{"beta_fast":32.0,"beta_slow":1.0,
      "factor":32.0,"original_max_position_embeddings":4096,"rope_type":"yarn","truncate":false},
      "rope_theta":150000,"sliding_window":128,"swiglu_limit":7.0,"vocab_size":201088,
      "eos_token_id":200002,"quantization_config":{"quant_method":"mxfp4",
      "modules_to_not_convert":["model.layers.*.self_attn","lm_head"]}})");
  const ModelConfig config = Parse(gpt);
  EXPECT_EQ(config.family, Family::kGptOss);
  EXPECT_TRUE(config.attention_sinks && config.attention_bias && config.attention_output_bias);
  EXPECT_TRUE(config.experts.bias && config.experts.normalized && config.quantized);
  EXPECT_EQ(config.parameters(), 20'914'757'184);
  // 3.61 billion, as published: without the embeddings.
  EXPECT_EQ(config.active_parameters() - config.vocab * config.hidden, 3'608'307'264);
  EXPECT_EQ(config.max_context, 131072);
  EXPECT_FALSE(config.rope.truncate);
  EXPECT_EQ(config.window, 128);
  for (int64_t layer = 0; layer < 24; ++layer) EXPECT_EQ(config.has_window(layer), layer % 2 == 0);
  EXPECT_EQ(config.gate_function.limit, 7);
  EXPECT_EQ(config.gate_function.up_added, 1);
  EXPECT_EQ(Parse(With(gpt, "swiglu_limit", 5.5)).gate_function.limit, 5.5f);
  EXPECT_ERROR(Parse(With(gpt, "swiglu_limit", -1)), FileError, "swiglu_limit");
}

TEST(ConfigTest, Qwen3_5) {
  // Qwen3.5-27B's config, shortened: the model also reads images.
  const json text = json::parse(R"({"attention_bias":false,"attn_output_gate":true,
      "dtype":"bfloat16","eos_token_id":248044,"full_attention_interval":4,"head_dim":256,
      "hidden_act":"silu","hidden_size":5120,"intermediate_size":17408,"linear_conv_kernel_dim":4,
      "linear_key_head_dim":128,"linear_num_key_heads":16,"linear_num_value_heads":48,
      "linear_value_head_dim":128,"max_position_embeddings":262144,"model_type":"qwen3_5_text",
      "num_attention_heads":24,"num_hidden_layers":64,"num_key_value_heads":4,
      "rms_norm_eps":1e-06,"rope_parameters":{"mrope_interleaved":true,
      "mrope_section":[11,11,10],"partial_rotary_factor":0.25,"rope_theta":10000000,
      "rope_type":"default"},"vocab_size":248320})");
  const json whole = {{"architectures", {"Qwen3_5ForConditionalGeneration"}},
                      {"model_type", "qwen3_5"},
                      {"tie_word_embeddings", false},
                      {"text_config", text}};
  const ModelConfig config = Parse(whole);
  EXPECT_EQ(config.family, Family::kQwen3_5);
  EXPECT_EQ(config.weight_dtype, DType::kBF16);
  EXPECT_EQ(config.eos_ids, std::vector<int32_t>{248044});
  EXPECT_TRUE(config.output_gate && config.qk_norm && !config.uniform());
  EXPECT_EQ(config.rotated(), 64);
  EXPECT_EQ(config.rope.theta, 1e7);
  EXPECT_EQ(config.delta, (ops::GatedDeltaShape{16, 48, 128, 128, 4}));
  for (int64_t layer = 0; layer < 64; ++layer) {
    EXPECT_EQ(config.is_recurrent(layer), layer % 4 != 3) << layer;
  }
  const kv::Layout layout = config.kv_layout(DType::kBF16);
  EXPECT_EQ(layout.whole_layers(), 16);
  EXPECT_EQ(layout.token_bytes(), 65536u);
  EXPECT_EQ(layout.state_bytes(), 48u * (48 * 128 * 128 + 3 * 10240) * 4);
  EXPECT_EQ(config.parameters(), ModelConfig::FromShapeName("qwen3.5-27b").parameters());

  const auto with = [&](const char* key, const json& value) {
    return With(whole, "text_config", With(text, key, value));
  };
  EXPECT_ERROR(Parse(with("linear_num_value_heads", 40)), FileError, "linear_num_value_heads");
  EXPECT_ERROR(Parse(with("linear_key_head_dim", 512)), FileError, "linear_key_head_dim");
  EXPECT_ERROR(Parse(with("layer_types", json::array({"full_attention"}))), FileError,
               "layer_types");
  EXPECT_ERROR(Parse(with("layer_types", json(std::vector<std::string>(64, "mamba")))), Unsupported,
               "layer_types", "mamba");
  EXPECT_ERROR(Parse(with("attention_bias", true)), Unsupported, "attention_bias");
}

TEST(ConfigTest, SharedExperts) {
  // Qwen3.5-35B-A3B's config, shortened. The numbers of parameters are Transformers'.
  const json text = json::parse(R"({"attn_output_gate":true,"full_attention_interval":4,
      "head_dim":256,"hidden_act":"silu","hidden_size":2048,"linear_conv_kernel_dim":4,
      "linear_key_head_dim":128,"linear_num_key_heads":16,"linear_num_value_heads":32,
      "linear_value_head_dim":128,"max_position_embeddings":262144,
      "model_type":"qwen3_5_moe_text","moe_intermediate_size":512,"num_attention_heads":16,
      "num_experts":256,"num_experts_per_tok":8,"num_hidden_layers":40,"num_key_value_heads":2,
      "rms_norm_eps":1e-06,"rope_parameters":{"partial_rotary_factor":0.25,
      "rope_theta":10000000,"rope_type":"default"},"shared_expert_intermediate_size":512,
      "vocab_size":248320})");
  const json whole = {{"architectures", {"Qwen3_5MoeForConditionalGeneration"}},
                      {"dtype", "bfloat16"},
                      {"tie_word_embeddings", false},
                      {"text_config", text}};
  const ModelConfig config = Parse(whole);
  EXPECT_EQ(config.family, Family::kQwen3_5Moe);
  EXPECT_EQ(config.parameters(), 34'660'610'688);
  EXPECT_EQ(config.parameters(), ModelConfig::FromShapeName("qwen3.5-35b-a3b").parameters());
  EXPECT_EQ(config.experts.shared, 512);
  EXPECT_TRUE(config.experts.normalized && config.experts.stacked && config.output_gate);
  EXPECT_FALSE(config.fused_delta);
  EXPECT_EQ(config.is_recurrent(38), true);
  for (const int64_t count : {3, 4}) {  // none of the first three attends
    ModelConfig few = config;
    few.KeepLayers(count);
    EXPECT_EQ(few.kv_layout(DType::kBF16).whole_layers(), count / 4);
  }
  ModelConfig attends = ModelConfig::FromShapeName("gemma3-1b");
  attends.windowed.front() = false;
  attends.KeepLayers(1);
  EXPECT_TRUE(attends.uniform());
  EXPECT_TRUE(config.has_experts(38) && config.has_experts(39));
  EXPECT_ERROR(Parse(With(whole, "text_config", Without(text, "moe_intermediate_size"))), FileError,
               "'intermediate_size' is missing");
  EXPECT_ERROR(Parse(With(whole, "text_config", With(text, "shared_expert_intermediate_size", -1))),
               FileError, "shared_expert_intermediate_size");

  const ModelConfig next = ModelConfig::FromShapeName("qwen3-next-80b-a3b");
  EXPECT_EQ(next.family, Family::kQwen3Next);
  EXPECT_EQ(next.parameters(), 79'674'391'296);
  EXPECT_TRUE(next.fused_delta && !next.experts.stacked);

  // Qwen1.5-MoE-A2.7B's config, shortened.
  const json moe = json::parse(R"({"architectures":["Qwen2MoeForCausalLM"],"hidden_size":2048,
      "intermediate_size":5632,"max_position_embeddings":8192,"moe_intermediate_size":1408,
      "num_attention_heads":16,"num_experts":60,"num_experts_per_tok":4,"num_hidden_layers":24,
      "num_key_value_heads":16,"shared_expert_intermediate_size":5632,"norm_topk_prob":false,
      "torch_dtype":"bfloat16","use_sliding_window":false,"vocab_size":151936})");
  const ModelConfig qwen2 = Parse(moe);
  EXPECT_EQ(qwen2.parameters(), 14'315'784'192);
  EXPECT_TRUE(qwen2.attention_bias && !qwen2.experts.normalized && !qwen2.qk_norm);
  EXPECT_FALSE(Parse(With(moe, "qkv_bias", false)).attention_bias);
  EXPECT_ERROR(Parse(Without(moe, "shared_expert_intermediate_size")), FileError,
               "shared_expert_intermediate_size");
}

TEST(ConfigTest, Experts) {
  // Qwen3-30B-A3B's config, shortened.
  const json qwen = json::parse(R"({"architectures":["Qwen3MoeForCausalLM"],"head_dim":128,
      "hidden_size":2048,"intermediate_size":6144,"max_position_embeddings":40960,
      "mlp_only_layers":[],"model_type":"qwen3_moe","moe_intermediate_size":768,
      "norm_topk_prob":true,"num_attention_heads":32,"num_experts":128,"num_experts_per_tok":8,
      "num_hidden_layers":48,"num_key_value_heads":4,"decoder_sparse_step":1,
      "rms_norm_eps":1e-06,"rope_theta":1000000.0,"torch_dtype":"bfloat16","vocab_size":151936})");
  const ModelConfig config = Parse(qwen);
  EXPECT_EQ(config.family, Family::kQwen3Moe);
  EXPECT_TRUE(config.qk_norm);
  EXPECT_EQ(config.experts.count, 128);
  EXPECT_EQ(config.experts.active, 8);
  EXPECT_EQ(config.experts.intermediate, 768);
  EXPECT_TRUE(config.experts.normalized);
  EXPECT_EQ(config.parameters(), 30'532'122'624);
  EXPECT_EQ(config.active_parameters(), 3'353'032'704);
  for (int64_t layer = 0; layer < 48; ++layer) EXPECT_TRUE(config.has_experts(layer));

  // Every other layer, and not the sixth.
  const ModelConfig sparse =
      Parse(With(With(qwen, "decoder_sparse_step", 2), "mlp_only_layers", {5}));
  for (int64_t layer = 0; layer < 48; ++layer) {
    EXPECT_EQ(sparse.has_experts(layer), layer % 2 == 1 && layer != 5) << layer;
  }
  EXPECT_LT(sparse.parameters(), config.parameters());
  EXPECT_FALSE(Parse(Without(qwen, "norm_topk_prob")).experts.normalized);

  const ModelConfig newer = Parse(With(Without(qwen, "num_experts"), "num_local_experts", 64));
  EXPECT_EQ(newer.experts.count, 64);

  const json mixtral =
      With(With(With(Mistral(), "architectures", {"MixtralForCausalLM"}), "num_local_experts", 8),
           "num_experts_per_tok", 2);
  EXPECT_EQ(Parse(mixtral).experts.intermediate, 14336);
  EXPECT_TRUE(Parse(mixtral).experts.normalized);
  EXPECT_EQ(Parse(Mistral()).experts.count, 0);
  EXPECT_FALSE(Parse(Mistral()).has_experts(0));

  EXPECT_ERROR(Parse(With(qwen, "num_experts_per_tok", 129)), FileError, "num_experts_per_tok");
  EXPECT_ERROR(Parse(With(With(qwen, "num_experts", 4), "num_experts_per_tok", 5)), FileError,
               "num_experts_per_tok", "at most num_experts = 4");
  EXPECT_ERROR(Parse(With(qwen, "num_experts", 1025)), FileError, "num_experts");
  EXPECT_ERROR(Parse(With(qwen, "num_experts", 0)), FileError, "num_experts");
  EXPECT_ERROR(Parse(Without(qwen, "num_experts")), FileError, "'num_experts'");
  EXPECT_ERROR(Parse(Without(qwen, "moe_intermediate_size")), FileError, "moe_intermediate_size");
  EXPECT_ERROR(Parse(With(qwen, "moe_intermediate_size", 8193)), FileError, "moe_intermediate_size",
               "times num_experts = 128 must be at most 1048576");
  EXPECT_ERROR(Parse(With(With(mixtral, "architectures", {"OlmoeForCausalLM"}), "clip_qkv", 8.0)),
               Unsupported, "clip_qkv");
}

}  // namespace
}  // namespace litecache::model
