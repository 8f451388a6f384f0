// A GGUF file's metadata and tensors as the tests of its config write them.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "io/gguf_bytes.h"
#include "model/config.h"
#include "temporary_directory.h"

namespace litecache::model {

inline constexpr uint32_t kF32 = 0, kF16 = 1, kQ4_0 = 2, kBF16 = 30;

class GgufConfig : public ::testing::Test {
 protected:
  static testing::GgufBytes Bytes(std::string_view architecture = "llama", uint32_t layers = 1) {
    const auto key = [&](const char* name) { return std::string(architecture) + "." + name; };
    return testing::GgufBytes()
        .Text("general.architecture", architecture)
        .Number(key("context_length"), 512)
        .Number(key("embedding_length"), 64)
        .Number(key("feed_forward_length"), 96)
        .Number(key("block_count"), layers)
        .Number(key("attention.head_count"), 4)
        .Number(key("attention.head_count_kv"), 2)
        .Float(key("attention.layer_norm_rms_epsilon"), 1e-6f);
  }
  static testing::GgufBytes WithEmbeddings(uint32_t type = kF32) {
    return Bytes().Tensor("token_embd.weight", {64, 40}, type, 0);
  }
  // Six layers, of which the last predicts a further token.
  static testing::GgufBytes WithDelta() {
    return testing::GgufBytes()
        .Text("general.architecture", "qwen35")
        .Number("qwen35.context_length", 512)
        .Number("qwen35.embedding_length", 64)
        .Number("qwen35.feed_forward_length", 96)
        .Number("qwen35.block_count", 6)
        .Number("qwen35.nextn_predict_layers", 1)
        .Number("qwen35.attention.head_count", 4)
        .Number("qwen35.attention.head_count_kv", 2)
        .Number("qwen35.attention.key_length", 40)
        .Number("qwen35.attention.value_length", 40)
        .Array("qwen35.rope.dimension_sections", testing::GgufBytes::kI32, 4,
               testing::Little(3) + testing::Little(3) + testing::Little(2) + testing::Little(0))
        .Tensor("token_embd.weight", {64, 40}, kBF16, 0)
        // F32 in any file: what converts weights must not see them as matrices of another type.
        .Tensor("blk.0.ssm_conv1d.weight", {4, 136}, kF32, 1 << 13)
        .Tensor("blk.5.nextn.eh_proj.weight", {128, 64}, kQ4_0, 1 << 14)
        .Tensor("blk.5.nextn.enorm.weight", {64}, kF32, (1 << 14) + (1 << 13));
  }
  // In the order of rotated dimensions, key heads, value heads, width, key dimension, taps.
  static testing::GgufBytes Delta(const std::vector<uint32_t>& values) {
    constexpr std::array<const char*, 6> kKeys = {"rope.dimension_count", "ssm.group_count",
                                                  "ssm.time_step_rank",   "ssm.inner_size",
                                                  "ssm.state_size",       "ssm.conv_kernel"};
    testing::GgufBytes bytes = WithDelta();
    for (size_t i = 0; i < values.size(); ++i) {
      bytes.Number(std::string("qwen35.") + kKeys[i], values[i]);
    }
    return bytes;
  }
  static std::string Flags(const std::vector<bool>& flags) {
    std::string bytes;
    for (const bool flag : flags) bytes += flag ? '\1' : '\0';
    return bytes;
  }
  ModelConfig Read(const testing::GgufBytes& bytes) const {
    return ModelConfig::FromModel(
        directory_.Write("m.gguf", bytes.Build(std::string(1 << 16, '\0'))));
  }

  const testing::TemporaryDirectory directory_;
};

}  // namespace litecache::model
