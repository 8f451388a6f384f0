// Configs of GGUF files. gguf_test.py compares whole models with those of Hugging Face directories.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "expect_error.h"
#include "io/gguf_bytes.h"
#include "model/config.h"
#include "temporary_directory.h"

namespace litecache::model {
namespace {

using ::litecache::testing::GgufBytes;
using ::litecache::testing::Little;
using ::litecache::testing::TemporaryDirectory;
using ::testing::ElementsAre;

constexpr uint32_t kF32 = 0, kF16 = 1, kQ4_0 = 2;

class GgufConfig : public ::testing::Test {
 protected:
  static GgufBytes Bytes(std::string_view architecture = "llama") {
    const auto key = [&](const char* name) { return std::string(architecture) + "." + name; };
    return GgufBytes()
        .Text("general.architecture", architecture)
        .Number(key("context_length"), 512)
        .Number(key("embedding_length"), 64)
        .Number(key("feed_forward_length"), 96)
        .Number(key("block_count"), 1)
        .Number(key("attention.head_count"), 4)
        .Number(key("attention.head_count_kv"), 2)
        .Float(key("attention.layer_norm_rms_epsilon"), 1e-6f);
  }
  static GgufBytes WithEmbeddings(uint32_t type = kF32) {
    return Bytes().Tensor("token_embd.weight", {64, 40}, type, 0);
  }
  ModelConfig Read(const GgufBytes& bytes) const {
    return ModelConfig::FromModel(
        directory_.Write("m.gguf", bytes.Build(std::string(1 << 16, '\0'))));
  }

  const TemporaryDirectory directory_;
};

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
  for (const int32_t type : {3, 3, 1, 3}) types += Little(type);
  const ModelConfig config =
      Read(WithEmbeddings()
               .Number("tokenizer.ggml.eos_token_id", 0)
               .Texts("tokenizer.ggml.tokens", {"</s>", "<|im_end|>", "<|eot_id|>", "<|im_start|>"})
               .Array("tokenizer.ggml.token_type", GgufBytes::kI32, 4, types));
  EXPECT_THAT(config.eos_ids, ElementsAre(0, 1));
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
  EXPECT_ERROR(Read(WithEmbeddings().Text("llama.rope.scaling.type", "longrope")), Unsupported,
               "longrope");
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
  EXPECT_ERROR(
      Read(WithEmbeddings().Tensor("blk.0.ffn_gate_exps.weight", {16, 4, 2}, kF32, 1 << 14)),
      Unsupported, "model.layers.0.mlp.experts.0.gate_proj.weight");
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
