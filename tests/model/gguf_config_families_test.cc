// What GGUF files of single families say of their models.
#include <gmock/gmock.h>

#include <cmath>
#include <string>
#include <vector>

#include "base/error.h"
#include "expect_error.h"
#include "model/gguf_config_testing.h"

namespace litecache::model {
namespace {

using ::litecache::testing::GgufBytes;
using ::litecache::testing::Little;
using ::testing::ElementsAre;

TEST_F(GgufConfig, CommandR) {
  const auto of = [](const char* architecture) {
    return Bytes(architecture, 8)
        .Float(std::string(architecture) + ".attention.layer_norm_epsilon", 1e-4f)
        .Tensor("token_embd.weight", {64, 40}, kF32, 0);
  };
  EXPECT_ERROR(Read(of("command-r")), FileError, "'command-r.logit_scale'", "is missing");
  const ModelConfig command_r = Read(of("command-r").Float("command-r.logit_scale", 0.5f));
  EXPECT_EQ(command_r.architecture, "CohereForCausalLM");
  EXPECT_EQ(command_r.logit_scale, 0.5);
  EXPECT_EQ(static_cast<float>(command_r.norm_eps), 1e-4f);
  EXPECT_ERROR(Read(of("command-r")
                        .Float("command-r.logit_scale", 0.5f)
                        .Tensor("blk.0.attn_q_norm.weight", {64}, kF32, 1 << 14)),
               Unsupported, "use_qk_norm", "Command R+");

  const auto cohere2 = [&] {
    return of("cohere2")
        .Float("cohere2.logit_scale", 1)
        .Number("cohere2.attention.sliding_window", 100);
  };
  const ModelConfig windows = Read(cohere2());
  EXPECT_THAT(windows.windowed, ElementsAre(true, true, true, false, true, true, true, false));
  EXPECT_THAT(windows.unrotated, ElementsAre(false, false, false, true, false, false, false, true));
  const std::vector<bool> pattern = {true, false, true, true, true, true, true, true};
  EXPECT_EQ(Read(cohere2().Array("cohere2.attention.sliding_window_pattern", GgufBytes::kBool, 8,
                                 Flags(pattern)))
                .windowed,
            pattern);
}

TEST_F(GgufConfig, NumbersOfXielu) {
  const auto apertus = [] {
    return Bytes("apertus")
        .Float("xielu.alpha_p", 0)
        .Float("xielu.alpha_n", 0)
        .Float("xielu.beta", 0.5f)
        .Tensor("token_embd.weight", {64, 40}, kF32, 0);
  };
  const ModelConfig config = Read(apertus().Float("xielu.eps", -1e-6f));
  ASSERT_EQ(config.xielu.size(), 1u);
  EXPECT_NEAR(config.xielu[0].positive, std::log(2), 1e-6);
  EXPECT_NEAR(config.xielu[0].negative, 0.5 + std::log(2), 1e-6);
  // RoPE is not scaled where the file has no factors.
  EXPECT_EQ(config.rope.scaling, RopeScaling::kNone);
  EXPECT_ERROR(Read(apertus()), FileError, "xielu.eps");
  EXPECT_ERROR(Read(apertus().Array("xielu.eps", GgufBytes::kF32, 2, Little(0) + Little(0))),
               FileError, "xielu.eps", "must have 1 elements");
  EXPECT_ERROR(Read(apertus().Array("xielu.eps", GgufBytes::kF32, 1, Little(0x7fc00000))),
               FileError, "xielu.eps", "must be numbers");
}

// What files do not say is as llama.cpp has it, and what differs from the family is refused.
TEST_F(GgufConfig, ExpertsOfFamilies) {
  const auto of = [](const std::string& architecture) {
    return Bytes(architecture)
        .Tensor("token_embd.weight", {64, 40}, kBF16, 0)
        .Number(architecture + ".expert_count", 8)
        .Number(architecture + ".expert_used_count", 2)
        .Number(architecture + ".expert_feed_forward_length", 24);
  };
  const ExpertConfig glm = Read(of("glm4moe")).experts;
  EXPECT_TRUE(glm.sigmoid);
  EXPECT_FALSE(glm.normalized);
  EXPECT_EQ(glm.scale, 1);
  EXPECT_EQ(glm.intermediate, 24);
  EXPECT_THAT(glm.dense, ElementsAre(false));
  EXPECT_EQ(glm.correction, "e_score_correction_bias");
  EXPECT_EQ(Read(of("glm4moe").Number("glm4moe.expert_shared_count", 2)).experts.shared, 48);
  const ModelConfig minimax = Read(of("minimax-m2").Number("minimax-m2.rope.dimension_count", 8));
  EXPECT_TRUE(minimax.experts.sigmoid && minimax.experts.normalized);
  EXPECT_EQ(minimax.rotated(), 8);
  const ModelConfig ernie = Read(of("ernie4_5-moe")
                                     .Number("ernie4_5-moe.interleave_moe_layer_step", 1)
                                     .Number("ernie4_5-moe.leading_dense_block_count", 1));
  EXPECT_FALSE(ernie.experts.sigmoid);
  EXPECT_THAT(ernie.experts.dense, ElementsAre(true));

  EXPECT_ERROR(Read(of("glm4moe").Number("glm4moe.expert_gating_func", 1)), Unsupported,
               "glm4moe.expert_gating_func", "sigmoids, 2");
  EXPECT_ERROR(Read(of("glm4moe").Number("glm4moe.expert_group_count", 8)), Unsupported,
               "glm4moe.expert_group_count");
  EXPECT_ERROR(Read(of("minimax-m2").Float("minimax-m2.expert_weights_scale", 2)), Unsupported,
               "minimax-m2.expert_weights_scale");
  EXPECT_ERROR(Read(of("minimax-m2").Number("minimax-m2.expert_shared_count", 1)), Unsupported,
               "minimax-m2.expert_shared_count");
  EXPECT_ERROR(Read(of("ernie4_5-moe")), FileError, "interleave_moe_layer_step", "missing");
  for (const char* dense : {"qwen3", "mistral3", "seed_oss", "exaone4"}) {
    EXPECT_ERROR(Read(of(dense)), Unsupported, "expert_count", "this architecture");
  }
}

TEST_F(GgufConfig, Gemma4) {
  const auto bytes = [] {
    return GgufBytes()
        .Text("general.architecture", "gemma4")
        .Number("gemma4.context_length", 512)
        .Number("gemma4.embedding_length", 64)
        .Number("gemma4.block_count", 2)
        .Number("gemma4.feed_forward_length", 96)
        .Number("gemma4.attention.head_count", 4)
        .Number("gemma4.attention.head_count_kv", 2)
        .Number("gemma4.attention.sliding_window", 50)
        .Number("gemma4.attention.key_length", 16)
        .Number("gemma4.attention.key_length_swa", 8)
        .Tensor("token_embd.weight", {64, 40}, kBF16, 0);
  };
  const std::string pattern = "gemma4.attention.sliding_window_pattern";
  const auto with_pattern = [&](const GgufBytes& of) {
    return GgufBytes(of).Array(pattern, GgufBytes::kBool, 2, Flags({true, false}));
  };
  EXPECT_ERROR(Read(bytes()), FileError, pattern, "array");
  EXPECT_ERROR(Read(with_pattern(bytes())), FileError, "rope_freqs.weight", "missing");
  EXPECT_ERROR(Read(with_pattern(bytes()).Tensor("rope_freqs.weight", {8}, kF32, 1 << 14)),
               FileError, "rope_freqs.weight", "holds 0");
  EXPECT_ERROR(Read(with_pattern(bytes()).Tensor("rope_freqs.weight", {4}, kF32, 1 << 14)),
               FileError, "rope_freqs.weight", "F32 [8] is expected");
  EXPECT_ERROR(Read(with_pattern(bytes()).Number("gemma4.attention.value_length_swa", 16)),
               Unsupported, "gemma4.attention.value_length_swa");
  EXPECT_ERROR(Read(with_pattern(bytes()).Number("gemma4.attention.shared_kv_layers", 2)),
               FileError, "gemma4.attention.shared_kv_layers");
}

}  // namespace
}  // namespace litecache::model
