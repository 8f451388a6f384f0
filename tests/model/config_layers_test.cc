// What config.json says of layers: their parts and windows.
#include <gtest/gtest.h>

#include "expect_error.h"
#include "model/config_testing.h"

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
  // null is not the same as left out.
  const json narrow = With(OfFamily("SeedOssForCausalLM"), "hidden_size", 2048);
  EXPECT_EQ(Parse(Without(narrow, "head_dim")).head_dim, 128);
  EXPECT_EQ(Parse(With(narrow, "head_dim", nullptr)).head_dim, 64);
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
  // null is none; what is left out is as in Transformers.
  EXPECT_EQ(windows(Parse(Mistral())), 0);
  EXPECT_EQ(Parse(Without(Mistral(), "sliding_window")).window, 4096);
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
  json config = With(OfFamily("Exaone4ForCausalLM"), "sliding_window", nullptr);
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

TEST(ConfigTest, FeedForwardBlocksWithoutAGate) {
  const ModelConfig llama = Parse(With(OfFamily("LlamaForCausalLM"), "num_hidden_layers", 8));
  const int64_t gates = 8 * llama.hidden * llama.intermediate;
  const json of_arcee = With(OfFamily("ArceeForCausalLM"), "hidden_act", "relu2");
  const ModelConfig arcee = Parse(of_arcee);
  EXPECT_EQ(arcee.feed_forward, FeedForward::kReluSquared);
  EXPECT_EQ(llama.parameters() - arcee.parameters(), gates);
  EXPECT_EQ(Parse(With(of_arcee, "mlp_bias", true)).parameters() - arcee.parameters(),
            8 * (arcee.intermediate + arcee.hidden));
  EXPECT_ERROR(Parse(OfFamily("ArceeForCausalLM")), Unsupported, "hidden_act", "silu",
               "only with relu2");

  const json of_apertus = With(OfFamily("ApertusForCausalLM"), "hidden_act", "xielu");
  const ModelConfig apertus = Parse(of_apertus);
  EXPECT_TRUE(apertus.qk_norm && apertus.norms.attention_input == "attention_layernorm");
  // Norms of heads, and two numbers of xIELU a layer.
  EXPECT_EQ(apertus.parameters() - arcee.parameters(), 8 * (2 * 128 + 2));
  // As Transformers' config has it where nothing is given.
  EXPECT_EQ(apertus.rope.scaling, RopeScaling::kLlama3);
  EXPECT_EQ(Parse(Without(of_apertus, "rope_theta")).rope.theta, 12e6);
  EXPECT_ERROR(Parse(With(of_apertus, "qk_norm", false)), Unsupported, "qk_norm", "only with true");
  EXPECT_ERROR(Parse(With(of_apertus, "post_norm", true)), Unsupported, "post_norm");

  json of_nemotron = With(OfFamily("NemotronForCausalLM"), "hidden_act", "relu2");
  of_nemotron["norm_eps"] = 1e-4;
  const ModelConfig nemotron = Parse(of_nemotron);
  EXPECT_TRUE(nemotron.layer_norm && nemotron.norm_bias && nemotron.norm_added == 1);
  EXPECT_EQ(nemotron.norm_eps, 1e-4);
  EXPECT_EQ(nemotron.rotated(), 64);
  EXPECT_EQ(nemotron.parameters() - arcee.parameters(), (8 * 2 + 1) * 4096);  // norms' biases

  const json of_starcoder2 = With(Without(OfFamily("Starcoder2ForCausalLM"), "tie_word_embeddings"),
                                  "hidden_act", "gelu_pytorch_tanh");
  const ModelConfig starcoder2 = Parse(of_starcoder2);
  EXPECT_TRUE(starcoder2.tie_embeddings && starcoder2.attention_bias && starcoder2.mlp_bias &&
              starcoder2.attention_output_bias && starcoder2.uniform());
  const ModelConfig plain = Parse(With(of_starcoder2, "use_bias", false));
  EXPECT_EQ(starcoder2.parameters() - plain.parameters(),
            8 * (plain.q_width() + 2 * plain.kv_width() + 2 * plain.hidden + plain.intermediate));
  EXPECT_EQ(Parse(With(of_starcoder2, "sliding_window", 4096)).window, 4096);
  EXPECT_ERROR(Parse(With(of_starcoder2, "norm_type", "rms_norm")), Unsupported, "norm_type",
               "only with layer_norm");
  EXPECT_ERROR(Parse(With(of_starcoder2, "hidden_act", "gelu")), Unsupported, "hidden_act");
}

TEST(ConfigTest, Cohere) {
  const json of_r = Without(OfFamily("CohereForCausalLM"), "tie_word_embeddings");
  const ModelConfig command_r = Parse(With(of_r, "layer_norm_eps", 1e-4));
  EXPECT_TRUE(command_r.layer_norm && !command_r.norm_bias && command_r.parallel_blocks &&
              command_r.rotary_neighbours && command_r.tie_embeddings);
  EXPECT_EQ(command_r.logit_scale, 0.0625);
  EXPECT_EQ(command_r.norm_eps, 1e-4);
  const ModelConfig llama = Parse(With(OfFamily("LlamaForCausalLM"), "tie_word_embeddings", true));
  EXPECT_EQ(llama.parameters() - command_r.parameters(), 8 * 4096);  // one norm a layer less
  EXPECT_ERROR(Parse(With(of_r, "use_qk_norm", true)), Unsupported, "use_qk_norm", "Command R+");
  EXPECT_ERROR(Parse(With(of_r, "use_parallel_block", false)), Unsupported, "use_parallel_block");

  // Command R7B's config, shortened.
  json r7b = json::parse(R"({"architectures": ["Cohere2ForCausalLM"], "attention_bias": false,
      "bos_token_id": 5, "cache_implementation": "hybrid", "eos_token_id": 255001, "head_dim": 128,
      "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 14336,
      "layer_norm_eps": 1e-05, "layer_switch": 4, "logit_scale": 0.25,
      "max_position_embeddings": 132096, "model_type": "cohere2", "num_attention_heads": 32,
      "num_hidden_layers": 32, "num_key_value_heads": 8,
      "order_of_interleaved_layers": "local_attn_first",
      "position_embedding_type": "rope_gptj", "rope_scaling": null, "rope_theta": 50000,
      "rotary_pct": 1.0, "sliding_window": 4096, "torch_dtype": "bfloat16",
      "use_embedding_sharing": true, "use_gated_activation": true, "use_parallel_block": true,
      "use_parallel_embedding": true, "vocab_size": 256000})");
  const ModelConfig config = Parse(r7b);
  EXPECT_EQ(config.window, 4096);
  EXPECT_EQ(config.logit_scale, 0.25);
  EXPECT_EQ(config.rope.theta, 50000);
  EXPECT_EQ(config.parameters(), 8'028'033'024);
  for (int64_t i = 0; i < config.layers; ++i) {
    EXPECT_EQ(config.has_window(i), i % 4 != 3) << i;
    EXPECT_EQ(config.rotates(i), i % 4 != 3) << i;
  }
  EXPECT_FALSE(Parse(With(r7b, "sliding_window_pattern", 2)).rotates(1));
  EXPECT_ERROR(Parse(With(r7b, "position_embedding_type", "alibi")), Unsupported,
               "position_embedding_type", "rope_gptj");
  EXPECT_ERROR(Parse(Without(r7b, "sliding_window")), FileError, "sliding_window");
}

TEST(ConfigTest, HunYuan) {
  json config = With(OfFamily("HunYuanDenseV1ForCausalLM"), "rope_scaling",
                     {{"type", "dynamic"}, {"alpha", 1000.0}, {"factor", 1.0}});
  const ModelConfig hunyuan = Parse(config);
  EXPECT_TRUE(hunyuan.qk_norm && hunyuan.qk_norm_after_rope);
  EXPECT_EQ(hunyuan.norms.query, "self_attn.query_layernorm");
  EXPECT_EQ(hunyuan.max_context, 131072);
  // The base, times alpha ^ (128 / 126).
  const RopeTable table = MakeRopeTable(hunyuan.rope, 128);
  EXPECT_NEAR(table.inv_freq[1], std::pow(5e5 * std::pow(1e3, 128.0 / 126), -2.0 / 128), 1e-7);
  EXPECT_ERROR(Parse(With(config, "use_cla", true)), Unsupported, "use_cla", "only with false");
  EXPECT_ERROR(Parse(With(config, "use_qk_norm", false)), Unsupported, "use_qk_norm");
  EXPECT_ERROR(Parse(With(config, "head_dim", 2)), FileError, "head_dim", "at least 4");
  EXPECT_ERROR(Parse(With(config, "architectures", {"LlamaForCausalLM"})), Unsupported,
               "rope_scaling", "only for HunYuan");
  config["rope_scaling"].erase("alpha");
  EXPECT_ERROR(Parse(config), Unsupported, "rope_scaling.type", "dynamic");
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

// The language part of models that read images, whose tokens of text have one position three times.
TEST(ConfigTest, QwenWithImages) {
  // Qwen2.5-VL-7B's, which has the language part's fields beside the others.
  const json flat = json::parse(R"({"architectures":["Qwen2_5_VLForConditionalGeneration"],
      "bos_token_id":151643,"eos_token_id":151645,"hidden_act":"silu","hidden_size":3584,
      "image_token_id":151655,"intermediate_size":18944,"max_position_embeddings":128000,
      "max_window_layers":28,"model_type":"qwen2_5_vl","num_attention_heads":28,
      "num_hidden_layers":28,"num_key_value_heads":4,"rms_norm_eps":1e-06,
      "rope_scaling":{"type":"mrope","mrope_section":[16,24,24]},"rope_theta":1000000.0,
      "sliding_window":32768,"tie_word_embeddings":false,"torch_dtype":"bfloat16",
      "use_sliding_window":false,"vision_config":{"depth":32,"hidden_size":1280},
      "vocab_size":152064})");
  const ModelConfig config = Parse(flat);
  EXPECT_EQ(config.family, Family::kQwen2);
  EXPECT_TRUE(config.attention_bias && config.windowed.empty());
  EXPECT_EQ(config.rope.scaling, RopeScaling::kNone);
  EXPECT_EQ(config.rope.theta, 1e6);
  EXPECT_EQ(config.parameters(), ModelConfig::FromShapeName("qwen2.5-7b").parameters());

  // Qwen3-VL-8B's, which has them in an object.
  const json text = json::parse(R"({"attention_bias":false,"dtype":"bfloat16","head_dim":128,
      "hidden_act":"silu","hidden_size":4096,"intermediate_size":12288,
      "max_position_embeddings":262144,"model_type":"qwen3_vl_text","num_attention_heads":32,
      "num_hidden_layers":36,"num_key_value_heads":8,"rms_norm_eps":1e-06,
      "rope_scaling":{"mrope_interleaved":true,"mrope_section":[24,20,20],"rope_type":"default"},
      "rope_theta":5000000,"vocab_size":151936})");
  const json whole = {{"architectures", {"Qwen3VLForConditionalGeneration"}},
                      {"model_type", "qwen3_vl"},
                      {"tie_word_embeddings", false},
                      {"text_config", text}};
  const ModelConfig nested = Parse(whole);
  EXPECT_EQ(nested.family, Family::kQwen3);
  EXPECT_TRUE(nested.qk_norm);
  EXPECT_EQ(nested.max_context, 262144);
  EXPECT_EQ(nested.rope.theta, 5e6);
  EXPECT_EQ(nested.parameters(), ModelConfig::FromShapeName("qwen3-8b").parameters());
  EXPECT_ERROR(Parse(With(whole, "text_config", 1)), Unsupported, "architectures");
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

}  // namespace
}  // namespace litecache::model
