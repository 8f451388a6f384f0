// Configs of GGUF files. gguf_test.py compares whole models with those of Hugging Face directories.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

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

TEST_F(GgufConfig, ReadsTheMetadata) {
  const ModelConfig config = Read(WithEmbeddings(kF16)
                                      .Float("llama.rope.freq_base", 5e5f)
                                      .Number("tokenizer.ggml.bos_token_id", 1)
                                      .Number("tokenizer.ggml.eos_token_id", 2));
  EXPECT_EQ(config.family, Family::kLlama);
  EXPECT_EQ(config.hidden, 64);
  EXPECT_EQ(config.vocab, 40);
  EXPECT_EQ(config.head_dim, 16);
  EXPECT_EQ(config.kv_heads, 2);
  EXPECT_EQ(config.norm_eps, 1e-6);
  EXPECT_EQ(config.rope.theta, 5e5);
  EXPECT_EQ(config.weight_dtype, DType::kF16);
  EXPECT_TRUE(config.tie_embeddings);
  EXPECT_FALSE(config.converts_weights);
  EXPECT_EQ(config.bos_id, 1);
  EXPECT_THAT(config.eos_ids, ElementsAre(2));
}

TEST_F(GgufConfig, BesideQuantizedWeightsOthersBecomeBf16) {
  const ModelConfig config =
      Read(WithEmbeddings(kQ4_0).Tensor("output.weight", {64, 40}, kF32, 1 << 14));
  EXPECT_EQ(config.weight_dtype, DType::kBF16);
  EXPECT_TRUE(config.quantized);
  EXPECT_TRUE(config.converts_weights) << "the logits' matrix is F32";
  EXPECT_FALSE(config.tie_embeddings);
  const ModelConfig alone = Read(WithEmbeddings(kQ4_0));
  EXPECT_TRUE(alone.quantized);
  EXPECT_FALSE(alone.converts_weights);
  EXPECT_EQ(
      Read(WithEmbeddings(kF16).Tensor("output.weight", {64, 40}, kF32, 1 << 14)).weight_dtype,
      DType::kF32);
}

// Chat models end a turn with a token that the file does not call the end of a text.
TEST_F(GgufConfig, ControlTokensThatEndATurn) {
  std::string types;
  for (const int32_t type : {3, 3, 1, 3, 3, 4}) types += Little(type);
  const ModelConfig config =
      Read(WithEmbeddings()
               .Number("tokenizer.ggml.eos_token_id", 0)
               .Texts("tokenizer.ggml.tokens", {"</s>", "<|im_end|>", "<|eot_id|>", "<|im_start|>",
                                                "<turn|>", "<|tool_response>"})
               .Array("tokenizer.ggml.token_type", GgufBytes::kI32, 6, types));
  EXPECT_THAT(config.eos_ids, ElementsAre(0, 1, 4, 5));
}

TEST_F(GgufConfig, RopeScaling) {
  const ModelConfig yarn = Read(WithEmbeddings()
                                    .Text("llama.rope.scaling.type", "yarn")
                                    .Float("llama.rope.scaling.factor", 4)
                                    .Number("llama.rope.scaling.original_context_length", 256));
  EXPECT_EQ(yarn.rope.scaling, RopeScaling::kYarn);
  EXPECT_EQ(yarn.rope.factor, 4);
  EXPECT_EQ(yarn.max_context, 1024);
  EXPECT_EQ(Read(WithEmbeddings().Text("llama.rope.scaling.type", "none")).rope.scaling,
            RopeScaling::kNone);
  // Files before types have a factor of all positions alone.
  for (const char* key : {"llama.rope.scaling.factor", "llama.rope.scale_linear"}) {
    const ModelConfig linear = Read(WithEmbeddings().Float(key, 4));
    EXPECT_EQ(linear.rope.scaling, RopeScaling::kLinear) << key;
    EXPECT_EQ(linear.rope.factor, 4) << key;
    EXPECT_EQ(Read(WithEmbeddings().Float(key, 0)).rope.scaling, RopeScaling::kNone) << key;
  }
  EXPECT_EQ(Read(WithEmbeddings()
                     .Text("llama.rope.scaling.type", "none")
                     .Float("llama.rope.scaling.factor", 4))
                .rope.scaling,
            RopeScaling::kNone);
  EXPECT_ERROR(Read(WithEmbeddings().Text("llama.rope.scaling.type", "longrope")), Unsupported,
               "longrope");
  // The tensors' data are zeros.
  EXPECT_ERROR(Read(WithEmbeddings().Tensor("rope_factors_long.weight", {8}, kF32, 1 << 14)),
               FileError, "rope_factors_long.weight", "holds 0");
  EXPECT_ERROR(Read(WithEmbeddings().Tensor("rope_factors_short.weight", {8, 2}, kF32, 1 << 14)),
               FileError, "rope_factors_short.weight", "F32 [2, 8]");
  EXPECT_ERROR(Read(WithEmbeddings()
                        .Text("llama.rope.scaling.type", "yarn")
                        .Float("llama.rope.scaling.yarn_log_multiplier", 0.1f)),
               Unsupported, "yarn_log_multiplier");
  // Factors of zero, from the file's data.
  EXPECT_ERROR(Read(WithEmbeddings().Tensor("rope_freqs.weight", {8}, kF32, 1 << 14)), FileError,
               "rope_freqs.weight", "holds 0");
  EXPECT_ERROR(Read(WithEmbeddings().Tensor("rope_freqs.weight", {9}, kF32, 1 << 14)), FileError,
               "rope_freqs.weight", "F32 [9]", "F32 [8] is expected");
}

TEST_F(GgufConfig, RecurrentLayers) {
  const std::vector<uint32_t> sizes = {16, 2, 6, 120, 24, 4};
  const ModelConfig config = Read(Delta(sizes));
  EXPECT_EQ(config.family, Family::kQwen3_5);
  EXPECT_EQ(config.layers, 5);
  EXPECT_THAT(config.recurrent, ElementsAre(true, true, true, false, true));
  EXPECT_EQ(config.delta, (ops::GatedDeltaShape{2, 6, 24, 20, 4, /*tiled=*/true}));
  EXPECT_EQ(config.rotated(), 16);
  EXPECT_TRUE(config.output_gate);
  EXPECT_EQ(config.norm_added, 0);
  EXPECT_EQ(config.weight_dtype, DType::kBF16);
  EXPECT_FALSE(config.quantized);
  EXPECT_FALSE(config.converts_weights);
  EXPECT_THAT(Read(Delta(sizes).Number("qwen35.full_attention_interval", 2)).recurrent,
              ElementsAre(true, false, true, false, true));
  // What is said of each layer holds; the further one is among them.
  const std::string flags = Flags({false, true, true, false, true, false});
  EXPECT_THAT(Read(Delta(sizes)
                       .Number("qwen35.full_attention_interval", 2)
                       .Array("qwen35.attention.recurrent_layers", GgufBytes::kBool, 6, flags))
                  .recurrent,
              ElementsAre(false, true, true, false, true));
}

// A share of a head that binary fractions do not have must not lose a dimension.
TEST_F(GgufConfig, AnyEvenNumberOfDimensionsIsRotated) {
  for (uint32_t rotated = 2; rotated <= 40; rotated += 2) {
    EXPECT_EQ(Read(Delta({rotated, 2, 6, 120, 24, 4})).rotated(), rotated);
  }
}

TEST_F(GgufConfig, NamesWhatIsWrongWithRecurrentLayers) {
  EXPECT_ERROR(Read(Delta({16, 2, 6, 120, 24})), FileError, "qwen35.ssm.conv_kernel", "missing");
  EXPECT_ERROR(Read(Delta({16, 2, 6, 120, 24, 9})), FileError, "qwen35.ssm.conv_kernel");
  EXPECT_ERROR(Read(Delta({16, 2, 6, 120, 257, 4})), FileError, "qwen35.ssm.state_size");
  EXPECT_ERROR(Read(Delta({16, 0, 6, 120, 24, 4})), FileError, "qwen35.ssm.group_count");
  EXPECT_ERROR(Read(Delta({16, 4, 6, 120, 24, 4})), FileError, "qwen35.ssm.time_step_rank",
               "multiple of qwen35.ssm.group_count = 4");
  for (const uint32_t width : {119u, 6 * 257u}) {
    EXPECT_ERROR(Read(Delta({16, 2, 6, width, 24, 4})), FileError, "qwen35.ssm.inner_size",
                 "qwen35.ssm.time_step_rank = 6", "256");
  }
  for (const uint32_t rotated : {0, 15, 42}) {
    EXPECT_ERROR(Read(Delta({rotated, 2, 6, 120, 24, 4})), FileError, "qwen35.rope.dimension_count",
                 "even number of a head's 40");
  }
  const std::vector<uint32_t> sizes = {16, 2, 6, 120, 24, 4};
  EXPECT_ERROR(Read(Delta(sizes).Number("qwen35.full_attention_interval", 0)), FileError,
               "qwen35.full_attention_interval");
  const auto with_layers = [&](uint32_t type, uint64_t count, const std::string& elements) {
    return Delta(sizes).Array("qwen35.attention.recurrent_layers", type, count, elements);
  };
  EXPECT_ERROR(Read(with_layers(GgufBytes::kBool, 4, std::string(4, '\1'))), FileError,
               "qwen35.attention.recurrent_layers", "5 elements");
  EXPECT_ERROR(Read(with_layers(GgufBytes::kF32, 6, std::string(24, '\0'))), FileError,
               "qwen35.attention.recurrent_layers", "integers");
  EXPECT_ERROR(Read(Delta(sizes).Tensor("blk.0.nextn.enorm.weight", {64}, kF32, 1 << 15)),
               Unsupported, "blk.0.nextn.enorm.weight");
  EXPECT_ERROR(Read(Delta(sizes).Tensor("blk.5.nextn.other.weight", {64}, kF32, 1 << 15)),
               Unsupported, "blk.5.nextn.other.weight");
  EXPECT_ERROR(Read(Delta(sizes).Tensor("blk.0.ffn_gate_shexp.weight", {64}, kF32, 1 << 15)),
               Unsupported, "model.layers.0.mlp.shared_expert.gate_proj.weight");
  EXPECT_ERROR(Read(Delta(sizes).Tensor("blk.3.attn_q.bias", {320}, kF32, 1 << 15)), Unsupported,
               "attention_bias");
  EXPECT_ERROR(Read(WithEmbeddings().Tensor("blk.0.ssm_a", {6}, kF32, 1 << 15)), Unsupported,
               "model.layers.0.linear_attn.A_log");
  EXPECT_ERROR(Read(Bytes("qwen35")
                        .Tensor("token_embd.weight", {64, 40}, kF32, 0)
                        .Number("qwen35.nextn_predict_layers", 1)),
               FileError, "qwen35.nextn_predict_layers", "below block_count = 1");
}

TEST_F(GgufConfig, NamesWhatIsWrong) {
  EXPECT_ERROR(Read(GgufBytes()), FileError, "m.gguf", "general.architecture");
  EXPECT_ERROR(Read(Bytes("falcon")), Unsupported, "general.architecture", "\"falcon\"", "qwen3");
  EXPECT_ERROR(Read(Bytes()), FileError, "token_embd.weight", "missing");
  EXPECT_ERROR(Read(GgufBytes()
                        .Text("general.architecture", "llama")
                        .Tensor("token_embd.weight", {64, 40}, kF32, 0)),
               FileError, "llama.embedding_length");
  EXPECT_ERROR(Read(WithEmbeddings().Number("llama.expert_count", 8)), FileError,
               "llama.expert_used_count");
  EXPECT_ERROR(Read(WithEmbeddings()
                        .Number("llama.expert_count", 8)
                        .Number("llama.expert_used_count", 2)
                        .Number("llama.expert_gating_func", 2)),
               Unsupported, "llama.expert_gating_func", "softmax");
  for (const auto& [architecture, most] : {std::pair{"llama", 0}, {"qwen2moe", 1}}) {
    const std::string prefix = architecture;
    EXPECT_ERROR(Read(Bytes(architecture)
                          .Tensor("token_embd.weight", {64, 40}, kF32, 0)
                          .Number(prefix + ".expert_count", 8)
                          .Number(prefix + ".expert_shared_count", most + 1)),
                 Unsupported, prefix + ".expert_shared_count",
                 "up to " + std::to_string(most) + " shared");
  }
  EXPECT_ERROR(
      Read(WithEmbeddings().Tensor("blk.0.ffn_gate_exps.weight", {16, 4, 2}, kF32, 1 << 14)),
      Unsupported, "model.layers.0.mlp.experts.0.gate_proj.weight");
  const auto of = [](const char* architecture) {
    return Bytes(architecture).Tensor("token_embd.weight", {64, 40}, kF32, 0);
  };
  EXPECT_ERROR(Read(of("mistral3").Float("mistral3.attention.temperature_scale", 0.1f)),
               Unsupported, "mistral3.attention.temperature_scale", "rope.scaling.type");
  EXPECT_ERROR(
      Read(of("granite").Key("granite.rope.scaling.finetuned", GgufBytes::kBool, Flags({false}))),
      Unsupported, "granite.rope.scaling.finetuned");
  EXPECT_ERROR(
      Read(of("glm4").Array("glm4.rope.dimension_sections", GgufBytes::kI32, 1, Little(8))),
      Unsupported, "glm4.rope.dimension_sections");
  EXPECT_ERROR(
      Read(of("olmo2").Float("olmo2.rope.freq_base", 1e4f).Float("olmo2.rope.freq_base_swa", 1e5f)),
      Unsupported, "olmo2.rope.freq_base_swa");
  EXPECT_ERROR(Read(of("olmo2")
                        .Number("olmo2.attention.sliding_window", 64)
                        .Array("olmo2.attention.sliding_window_pattern", GgufBytes::kBool, 2,
                               Flags({true, false}))),
               FileError, "olmo2.attention.sliding_window_pattern", "1 elements");
  EXPECT_ERROR(Read(WithEmbeddings().Number("llama.rope.dimension_count", 8)), Unsupported,
               "llama.rope.dimension_count", "16");
  EXPECT_ERROR(Read(WithEmbeddings().Tensor("blk.0.ffn_gate_exps.weight", {16}, kF32, 1 << 14)),
               Unsupported, "blk.0.ffn_gate_exps.weight");
  EXPECT_ERROR(Read(GgufBytes()
                        .Text("general.architecture", "llama")
                        .Number("llama.embedding_length", 64)
                        .Array("llama.attention.head_count", GgufBytes::kI32, 1, Little(4))
                        .Tensor("token_embd.weight", {64, 40}, kF32, 0)
                        .Tensor("blk.0.attn_q.weight", {64, 64}, kF32, 1 << 14)),
               FileError, "llama.attention.head_count", "[1 x INT32]");
}

}  // namespace
}  // namespace litecache::model
