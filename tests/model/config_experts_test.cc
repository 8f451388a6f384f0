// What config.json says of experts and their routers.
#include <gtest/gtest.h>

#include <algorithm>

#include "expect_error.h"
#include "model/config_testing.h"

namespace litecache::model {
namespace {

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
  json odd = With(ernie, "hidden_size", 63);
  odd["num_attention_heads"] = odd["num_key_value_heads"] = 4;
  EXPECT_ERROR(Parse(Without(odd, "head_dim")), FileError, "hidden_size");
  odd["hidden_size"] = 60;
  EXPECT_ERROR(Parse(Without(odd, "head_dim")), FileError, "head_dim = 15");

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
  EXPECT_TRUE(next.fused_delta);

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
  json windows = With(With(moe, "use_sliding_window", true), "sliding_window", 512);
  windows["max_window_layers"] = 5;  // of the first layers, every other one
  for (int64_t i = 0; i < 24; ++i)
    EXPECT_EQ(Parse(windows).has_window(i), i % 2 == 0 && i < 5) << i;
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

  // Unlike in dense models, the default of head_dim is not 128, and windows are in all layers.
  EXPECT_EQ(Parse(Without(qwen, "head_dim")).head_dim, 64);
  json windows = With(With(qwen, "use_sliding_window", true), "sliding_window", 512);
  windows["max_window_layers"] = 30;
  EXPECT_EQ(std::ranges::count(Parse(windows).windowed, true), 48);

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
