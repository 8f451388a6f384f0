// The configs of Gemma's models.
#include <gtest/gtest.h>

#include <string>

#include "expect_error.h"
#include "model/config_testing.h"
#include "model/families.h"

namespace litecache::model {
namespace {

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
  EXPECT_EQ(gemma.logit_cap, 0);
  EXPECT_EQ(Parse(With(OfFamily("Gemma3ForCausalLM"), "final_logit_softcapping", 30.0)).logit_cap,
            30);
  EXPECT_ERROR(Parse(With(OfFamily("Gemma3ForCausalLM"), "attn_logit_softcapping", 30.0)),
               Unsupported, "attn_logit_softcapping");
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
    EXPECT_ERROR(Parse(With(gemma, key, -1)), FileError, key);
  }
  EXPECT_ERROR(Parse(Without(gemma, "sliding_window")), FileError, "sliding_window", "missing");
  // null is none, and what is left out is as in Transformers.
  EXPECT_EQ(Parse(With(gemma, "attn_logit_softcapping", nullptr)).attention_cap, 0);
  EXPECT_EQ(Parse(With(gemma, "final_logit_softcapping", nullptr)).logit_cap, 0);
  EXPECT_EQ(Parse(Without(gemma, "attn_logit_softcapping")).attention_cap, 50);
  EXPECT_EQ(Parse(Without(gemma, "final_logit_softcapping")).logit_cap, 30);
  EXPECT_ERROR(Parse(With(gemma, "use_bidirectional_attention", true)), Unsupported,
               "use_bidirectional_attention");
  EXPECT_NO_THROW(CheckRunsOnGpu(config));
  ModelConfig wide = config;
  wide.head_dim = 520;
  EXPECT_ERROR(CheckRunsOnGpu(wide), Unsupported, "Gemma2ForCausalLM", "520", "--device cpu");
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
  EXPECT_NO_THROW(CheckRunsOnGpu(config));

  // By layer, as Transformers writes them: what equals the heads of layers with windows is left
  // out.
  json by_layer = Without(Without(text, "global_head_dim"), "num_global_key_value_heads");
  by_layer["per_layer_config"] = json::object();
  const ModelConfig alike = Parse(whole(by_layer));
  EXPECT_EQ(alike.head_dim, 256);
  EXPECT_EQ(alike.kv_heads, 8);
  for (int layer = 5; layer < 48; layer += 6) {
    by_layer["per_layer_config"][std::to_string(layer)] = {{"num_key_value_heads", 1}};
  }
  EXPECT_EQ(Parse(whole(by_layer)).head_dim, 256);
  EXPECT_EQ(Parse(whole(by_layer)).kv_heads, 1);
  by_layer["per_layer_config"].erase("11");
  EXPECT_ERROR(Parse(whole(by_layer)), Unsupported, "per_layer_config", "alike");
  by_layer["per_layer_config"] = {{"0", {{"num_key_value_heads", 1}}}};
  EXPECT_ERROR(Parse(whole(by_layer)), Unsupported, "per_layer_config", "with a window");

  const auto refused = [&](const char* key, const json& value) {
    EXPECT_ERROR(Parse(whole(With(text, key, value))), Error, key);
  };
  refused("use_bidirectional_attention", "all");
  refused("num_global_key_value_heads", 3);
  refused("global_head_dim", 511);
  refused("num_kv_shared_layers", 47);  // the first layer is the only one left: with a window
  refused("num_hidden_layers", 47);     // the last layer would have a window
  refused("rope_parameters", nullptr);
  refused("sliding_window", nullptr);
  json experts = text;
  EXPECT_ERROR(Parse(whole(With(text, "enable_moe_block", true))), FileError, "num_experts");
  experts.update(json{{"enable_moe_block", true},
                      {"num_experts", 128},
                      {"top_k_experts", 8},
                      {"moe_intermediate_size", 704}});
  const ModelConfig mixture = Parse(whole(experts));
  EXPECT_EQ(mixture.experts.count, 128);
  EXPECT_EQ(mixture.experts.active, 8);
  EXPECT_EQ(mixture.experts.intermediate, 704);
  EXPECT_TRUE(mixture.has_experts(0) && mixture.has_ordinary_block(0));
  // Of each layer the experts, the router with two scales, and three norms.
  EXPECT_EQ(mixture.parameters() - config.parameters(),
            48 * (int64_t{128} * (3 * 3840 * 704 + 3840 + 1) + 4 * 3840));
  EXPECT_NO_THROW(CheckRunsOnGpu(mixture));
  EXPECT_ERROR(Parse(whole(With(experts, "top_k_experts", 129))), FileError, "top_k_experts");
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

}  // namespace
}  // namespace litecache::model
