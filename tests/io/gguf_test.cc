#include "io/gguf.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <limits>

#include "base/error.h"
#include "expect_error.h"
#include "gguf_bytes.h"
#include "io/checkpoint.h"
#include "io/gguf_names.h"
#include "temporary_directory.h"

namespace litecache::io {
namespace {

using ::litecache::testing::GgufBytes;
using ::litecache::testing::GgufText;
using ::litecache::testing::Little;
using ::litecache::testing::TemporaryDirectory;
using ::testing::ElementsAre;

constexpr uint32_t kF32 = 0, kQ8_0 = 8;
constexpr uint64_t kHuge = std::numeric_limits<uint64_t>::max();

GgufHeader Parse(const std::string& bytes) {
  return ParseGguf({reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()}, "m.gguf");
}

TEST(Gguf, ReadsMetadataAndTensors) {
  const TemporaryDirectory directory;
  const std::string data(256, 'd');
  const Gguf file(directory.Write(
      "m.gguf", GgufBytes()
                    .Number("n", 7)
                    .Float("f", 1e-5f)
                    .Text("t", "text")
                    .Key("b", GgufBytes::kBool, std::string(1, '\1'))
                    .Texts("words", {"a", "", "ccc"})
                    .Array("ids", GgufBytes::kI32, 2, Little(int32_t{-3}) + Little(int32_t{5}))
                    .Array("scores", GgufBytes::kF32, 1, Little(-2.5f))
                    .Tensor("v", {16}, kF32, 0)
                    .Tensor("w", {64, 2}, kQ8_0, 64)
                    .Build(data + std::string(64, 'e'))));
  EXPECT_EQ(file.fields().Int("n", 0, 10), 7);
  // As written in the source, not 9.999999747378752e-06.
  EXPECT_EQ(file.fields().Number("f", 0, 1), 1e-5);
  EXPECT_EQ(file.fields().String("t"), "text");
  EXPECT_EQ(file.fields().Bool("b"), true);
  EXPECT_THAT(file.Strings("words"), ElementsAre("a", "", "ccc"));
  EXPECT_THAT(file.Integers("ids"), ElementsAre(-3, 5));
  EXPECT_THAT(file.Floats("scores"), ElementsAre(-2.5f));
  const TensorInfo& w = file.tensors().at("w");
  EXPECT_EQ(w.ToString(), "Q8_0 [2, 64]");
  EXPECT_EQ(w.bytes(), 4 * 34);
  EXPECT_EQ(file.Data(w), file.Data(file.tensors().at("v")) + 64);
  EXPECT_EQ(file.file().size() - w.end, 320 - 64 - 4 * 34);
}

TEST(Gguf, ReadsNothing) {
  EXPECT_TRUE(Parse(GgufBytes().Build()).tensors.empty());
  EXPECT_TRUE(Parse(GgufBytes().Front(2)).metadata.empty());
}

TEST(Gguf, ArraysAreReadAsWhatTheyAre) {
  const TemporaryDirectory directory;
  const Gguf file(directory.Write("m.gguf", GgufBytes()
                                                .Texts("words", {"a", "b"})
                                                .Array("ids", GgufBytes::kU8, 3, "abc")
                                                .Number("n", 1)
                                                .Build()));
  EXPECT_ERROR(file.fields().Int("words", 0, 1), FileError, "m.gguf", "words", "[2 x STRING]");
  EXPECT_ERROR(file.Integers("words"), FileError, "words", "array of integers");
  EXPECT_ERROR(file.Strings("ids"), FileError, "ids", "array of strings");
  EXPECT_ERROR(file.Floats("ids"), FileError, "[3 x UINT8]", "array of floats");
  EXPECT_ERROR(file.Strings("n"), FileError, "'n' = 1", "must be an array");
  EXPECT_ERROR(file.Strings("none"), FileError, "key 'none' is missing");
}

TEST(Gguf, RefusesOtherFiles) {
  EXPECT_ERROR(Parse(""), FileError, "m.gguf", "download");
  EXPECT_ERROR(Parse("GGU"), FileError, "m.gguf", "download");
  EXPECT_ERROR(Parse("ggjt...................."), FileError, "is not GGUF");
  EXPECT_ERROR(Parse("version https://git-lfs.github.com/spec/v1\n"), FileError, "git lfs pull");
  EXPECT_ERROR(Parse(GgufBytes().Front(1)), FileError, "version 1", "convert the model again");
  EXPECT_ERROR(Parse(GgufBytes().Front(0x03000000)), FileError, "big-endian");
}

// Cut anywhere, a file is refused; so is one whose front is whole and whose data is cut.
TEST(Gguf, RefusesTruncatedFiles) {
  const std::string bytes = GgufBytes()
                                .Number("n", 7)
                                .Text("t", "text")
                                .Texts("words", {"a", "b"})
                                .Array("ids", GgufBytes::kI32, 2, std::string(8, '\1'))
                                .Tensor("v", {16}, kF32, 0)
                                .Build(std::string(64, 'd'));
  EXPECT_EQ(Parse(bytes).tensors.size(), 1);
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_THROW(Parse(bytes.substr(0, size)), FileError) << size;
  }
}

TEST(Gguf, RefusesCountsThatLie) {
  const auto front = [](uint64_t tensors, uint64_t keys) {
    return "GGUF" + Little(uint32_t{3}) + Little(tensors) + Little(keys);
  };
  EXPECT_ERROR(Parse(front(kHuge, 0)), FileError, "claims 18446744073709551615 tensors");
  EXPECT_ERROR(Parse(front(0, kHuge)), FileError, "18446744073709551615 keys");
  EXPECT_ERROR(Parse(front(1, 0)), FileError, "tensor 1 of 1", "download");
  EXPECT_ERROR(Parse(front(0, 1)), FileError, "key 1 of 1", "download");
  EXPECT_ERROR(Parse(GgufBytes().Key("t", GgufBytes::kText, Little(kHuge)).Build()), FileError,
               "key 't'", "18446744073709551615 bytes", "download");
  EXPECT_ERROR(Parse(front(0, 1) + Little(kHuge) + "key"), FileError, "at most 65536 are allowed");
  for (const uint64_t count : {uint64_t{5}, uint64_t{1} << 62, kHuge}) {
    EXPECT_ERROR(Parse(GgufBytes().Array("a", GgufBytes::kI32, count, "0123").Build()), FileError,
                 "key 'a'", "download");
    EXPECT_ERROR(Parse(GgufBytes().Array("a", GgufBytes::kText, count, GgufText("x")).Build()),
                 FileError, "key 'a'", "download");
  }
}

TEST(Gguf, RefusesNestedArraysBeyondALimit) {
  const auto nested = [](int depth) {
    const std::string outer = Little(uint32_t{GgufBytes::kArray}) + Little(uint64_t{1});
    std::string array;
    for (int i = 1; i < depth; ++i) array += outer;
    array += Little(uint32_t{GgufBytes::kU8}) + Little(uint64_t{0});
    return GgufBytes().Key("a", GgufBytes::kArray, array).Build();
  };
  EXPECT_TRUE(Parse(nested(4)).metadata.contains("a"));
  EXPECT_ERROR(Parse(nested(5)), FileError, "key 'a'", "nested more than 4 deep");
  EXPECT_ERROR(Parse(nested(100000)), FileError, "nested more than 4 deep");
}

TEST(Gguf, RefusesMetadataThatMakesNoSense) {
  EXPECT_ERROR(Parse(GgufBytes().Number("n", 1).Number("n", 2).Build()), FileError, "key 'n'",
               "twice");
  EXPECT_ERROR(Parse(GgufBytes().Key("n", 13, "").Build()), FileError, "key 'n'", "type 13");
  EXPECT_ERROR(Parse(GgufBytes().Array("n", 99, 1, "").Build()), FileError, "key 'n'", "type 99");
  EXPECT_ERROR(Parse(GgufBytes().Number("general.alignment", 0).Build()), FileError,
               "general.alignment", "from 8");
  EXPECT_ERROR(Parse(GgufBytes().Number("general.alignment", 24).Build()), FileError,
               "general.alignment", "power of two");
  EXPECT_ERROR(Parse(GgufBytes().Text("general.alignment", "x").Build()), FileError,
               "general.alignment", "integer");
}

TEST(Gguf, RefusesTensorsThatMakeNoSense) {
  const std::string data(1024, 'd');
  const auto tensor = [&](const std::vector<uint64_t>& dimensions, uint32_t type, uint64_t offset) {
    return Parse(GgufBytes().Tensor("w", dimensions, type, offset).Build(data));
  };
  EXPECT_EQ(tensor({16, 16}, kF32, 0).tensors.at("w").bytes(), 1024);
  EXPECT_ERROR(tensor({16, 17}, kF32, 0), FileError, "'w' (F32 [17, 16])", "1088", "1024 bytes",
               "download");
  EXPECT_ERROR(tensor({16, 16}, kF32, 32), FileError, "'w'", "download");
  EXPECT_ERROR(tensor({16}, kF32, 1 << 20), FileError, "'w'", "download");
  EXPECT_ERROR(tensor({16}, kF32, kHuge - 31), FileError, "'w'", "end nowhere");
  EXPECT_ERROR(tensor({16}, kF32, 8), FileError, "'w'", "multiple of general.alignment = 32");
  EXPECT_ERROR(tensor({}, kF32, 0), FileError, "'w'", "0 dimensions");
  EXPECT_ERROR(tensor({1, 1, 1, 1, 1}, kF32, 0), FileError, "'w'", "5 dimensions");
  EXPECT_ERROR(tensor({0}, kF32, 0), FileError, "'w'", "dimension 1 is 0");
  EXPECT_ERROR(tensor({kHuge}, kF32, 0), FileError, "'w'", "dimension 1");
  EXPECT_ERROR(tensor({1ull << 32, 1ull << 32}, kF32, 0), FileError, "'w'", "dimension 2");
  EXPECT_ERROR(tensor({1ull << 62}, kF32, 0), FileError, "'w'", "more bytes than there can be");
  EXPECT_ERROR(tensor({33}, kQ8_0, 0), FileError, "'w'", "rows of 33", "blocks of 32", "Q8_0");
  EXPECT_ERROR(tensor({32}, 4, 0), Unsupported, "m.gguf", "'w'", "type 4");
  EXPECT_ERROR(
      Parse(GgufBytes().Tensor("a", {16}, kF32, 0).Tensor("a", {16}, kF32, 64).Build(data)),
      FileError, "'a'", "twice");
  EXPECT_ERROR(
      Parse(GgufBytes().Tensor("a", {16}, kF32, 64).Tensor("b", {17}, kF32, 0).Build(data)),
      FileError, "tensors 'b' and 'a' overlap");
  EXPECT_ERROR(Parse(GgufBytes().Tensor(std::string(2000, 'n'), {16}, kF32, 0).Build(data)),
               FileError, "tensor 1 of 1", "at most 1024");
}

// What a terminal would obey is escaped.
TEST(Gguf, NamesAreShownSafely) {
  EXPECT_ERROR(Parse(GgufBytes().Tensor("\x1b[2J", {0}, kF32, 0).Build()), FileError, "\\x1b[2J");
  EXPECT_ERROR(Parse(GgufBytes().Key("\x1b[2J", 77, "").Build()), FileError, "\\x1b[2J");
}

TEST(GgufNames, AreThoseOfHuggingFace) {
  EXPECT_EQ(HuggingFaceName("blk.13.attn_q.weight"), "model.layers.13.self_attn.q_proj.weight");
  EXPECT_EQ(HuggingFaceName("blk.0.attn_k.bias"), "model.layers.0.self_attn.k_proj.bias");
  EXPECT_EQ(HuggingFaceName("token_embd.weight"), "model.embed_tokens.weight");
  EXPECT_EQ(HuggingFaceName("blk.2.attn_sinks.weight"), "model.layers.2.self_attn.sinks");
  EXPECT_EQ(HuggingFaceName("blk.2.ssm_a"), "model.layers.2.linear_attn.A_log");
  EXPECT_EQ(HuggingFaceName("blk.2.ssm_dt.bias"), "model.layers.2.linear_attn.dt_bias");
  EXPECT_EQ(HuggingFaceName("blk.2.ffn_down.11.weight", "llama"),
            "model.layers.2.mlp.experts.11.down_proj.weight");
  EXPECT_EQ(HuggingFaceName("blk.2.attn_qkv.weight"),
            "model.layers.2.linear_attn.in_proj_qkv.weight");
  EXPECT_EQ(HuggingFaceName("blk.2.attn_qkv.weight", "phi3"),
            "model.layers.2.self_attn.qkv_proj.weight");
  EXPECT_EQ(HuggingFaceName("blk.2.ffn_up.weight", "glm4"),
            "model.layers.2.mlp.gate_up_proj.weight");
  EXPECT_EQ(HuggingFaceName("blk.2.ffn_gate_inp_shexp.weight"),
            "model.layers.2.mlp.shared_expert_gate.weight");
  EXPECT_EQ(HuggingFaceName("per_layer_token_embd.weight"), "model.embed_tokens_per_layer.weight");
  EXPECT_EQ(HuggingFaceName("blk.2.exp_probs_b.bias"),
            "model.layers.2.mlp.e_score_correction_bias");
  EXPECT_EQ(HuggingFaceName("blk.2.ffn_gate_up_exps.weight"),
            "model.layers.2.mlp.experts.*.gate_up_proj.weight");
  EXPECT_EQ(HuggingFaceName("blk.2.ffn_down_exps.scale"), "model.layers.2.router.per_expert_scale");
  EXPECT_EQ(HuggingFaceName("blk.2.layer_output_scale.weight"), "model.layers.2.layer_scalar");
  for (const char* other :
       {"rope_freqs.weight", "blk.0.attn_qkv.bias", "blk.0.ssm_a.weight", "blk.0.ssm_dt.weight",
        "blk.0.nextn.enorm.weight", "blk..attn_q.weight", "blk.x.attn_q.weight", "blk..ssm_a",
        "blk.0", "blk.0.", "blk.", "ssm_a", "attn_q.weight", "", ".weight"}) {
    EXPECT_EQ(HuggingFaceName(other), other);
  }
  EXPECT_EQ(GgufModelName("d/a.Q4_K_M.gguf"), "a.Q4_K_M");
  EXPECT_EQ(GgufModelName("d/a-00001-of-00003.gguf"), "a");
}

// Tensors that have another shape or form in a directory.
TEST(GgufNames, TensorsHaveTheShapesOfHuggingFace) {
  const TemporaryDirectory directory;
  const Checkpoint checkpoint(
      directory.Write("m.gguf", GgufBytes()
                                    .Tensor("blk.0.ffn_gate_inp_shexp.weight", {8}, kF32, 0)
                                    .Tensor("blk.0.ssm_conv1d.weight", {4, 6}, kF32, 32)
                                    .Tensor("blk.0.ssm_a", {8}, kF32, 128)
                                    .Tensor("blk.0.ssm_dt.bias", {8}, kF32, 160)
                                    .Build(std::string(192, 'x'))));
  const auto find = [&](const std::string& name) {
    return checkpoint.Find("model.layers.0." + name);
  };
  EXPECT_EQ(find("mlp.shared_expert_gate.weight").info->ToString(), "F32 [1, 8]");
  const Checkpoint::Tensor filter = find("linear_attn.conv1d.weight");
  EXPECT_EQ(filter.info->ToString(), "F32 [6, 1, 4]");
  EXPECT_EQ(filter.info->bytes(), 96u);
  EXPECT_EQ(filter.data, find("mlp.shared_expert_gate.weight").data + 32);
  EXPECT_TRUE(find("linear_attn.A_log").negated_exponential);
  EXPECT_FALSE(find("linear_attn.dt_bias").negated_exponential);
}

class SplitGguf : public ::testing::Test {
 protected:
  std::filesystem::path Write(const std::string& name, uint32_t part, uint32_t count,
                              const std::string& tensor) const {
    GgufBytes bytes;
    bytes.Number("split.no", part).Number("split.count", count);
    if (!tensor.empty()) bytes.Tensor(tensor, {16}, kF32, 0);
    return directory_.Write(name, bytes.Build(std::string(64, static_cast<char>('0' + part))));
  }

  const TemporaryDirectory directory_;
};

// A tensor with the matrices of all experts is a tensor for each.
TEST(GgufExperts, AreTensorsOfTheirOwn) {
  const TemporaryDirectory directory;
  std::string data;
  for (int32_t i = 0; i < 60; ++i) data += Little(static_cast<float>(i));
  const auto file =
      directory.Write("m.gguf", GgufBytes()
                                    .Tensor("blk.2.ffn_up_exps.weight", {4, 3, 5}, 0, 0)
                                    .Build(data + std::string(64, '\0')));
  const Checkpoint checkpoint(file);
  EXPECT_EQ(checkpoint.tensor_count(), 5u);
  for (int expert = 0; expert < 5; ++expert) {
    const auto found =
        checkpoint.Find("model.layers.2.mlp.experts." + std::to_string(expert) + ".up_proj.weight");
    ASSERT_NE(found.info, nullptr) << expert;
    EXPECT_EQ(found.info->ToString(), "F32 [3, 4]");
    float values[12];
    ASSERT_EQ(found.info->bytes(), sizeof values);
    std::memcpy(values, found.data, sizeof values);
    for (int i = 0; i < 12; ++i) EXPECT_EQ(values[i], static_cast<float>(expert * 12 + i));
  }
}

TEST(GgufExperts, OtherShapesAreLeftUnderTheirNames) {
  const TemporaryDirectory directory;
  const auto names = [&](const std::vector<uint64_t>& shape) {
    const auto file =
        directory.Write("m.gguf", GgufBytes()
                                      .Tensor("blk.0.ffn_down_exps.weight", shape, 0, 0)
                                      .Build(std::string(1 << 14, '\0')));
    return Checkpoint(file).TensorNames();
  };
  const std::vector<std::string> stored = {"blk.0.ffn_down_exps.weight"};
  EXPECT_EQ(names({4, 4}), stored);
  EXPECT_EQ(names({1, 1, 1025}), stored);
  EXPECT_EQ(names({1, 1, 2}).size(), 2u);
}

// A small file must not become a large table.
TEST(GgufExperts, AreLimited) {
  const TemporaryDirectory directory;
  GgufBytes bytes;
  for (uint64_t layer = 0; layer < 257; ++layer) {
    bytes.Tensor("blk." + std::to_string(layer) + ".ffn_gate_exps.weight", {1, 1, 1024}, 0,
                 layer * 4096);
  }
  const auto file = directory.Write("m.gguf", bytes.Build(std::string(257 * 4096, '\0')));
  EXPECT_ERROR(Checkpoint{file}, FileError, "ffn_gate_exps.weight", "262144 matrices of experts");
}

TEST(GgufFiles, ThatAreNoModelsAreRefused) {
  const TemporaryDirectory directory;
  for (const auto& [type, advice] : {std::pair("adapter", "merge it into its model"),
                                     {"mmproj", "name the file of the model"},
                                     {"imatrix", "name the file of the model"}}) {
    const auto file = directory.Write("m.gguf", GgufBytes()
                                                    .Text("general.architecture", "llama")
                                                    .Text("general.type", type)
                                                    .Tensor("blk.0.attn_q.weight.a", {16}, kF32, 0)
                                                    .Build(std::string(64, '\0')));
    EXPECT_ERROR(Checkpoint{file}, Unsupported, "m.gguf", "general.type", type, advice);
  }
}

TEST_F(SplitGguf, HasTheTensorsOfAllFiles) {
  const auto first = Write("m-00001-of-00002.gguf", 0, 2, "");
  Write("m-00002-of-00002.gguf", 1, 2, "token_embd.weight");
  const Checkpoint checkpoint(first);
  EXPECT_THAT(checkpoint.TensorNames(), ElementsAre("model.embed_tokens.weight"));
  const Checkpoint::Tensor tensor = checkpoint.Find("model.embed_tokens.weight");
  EXPECT_EQ(std::memcmp(tensor.data, "1111", 4), 0);
  EXPECT_EQ(tensor.paired_heads, 0);
}

TEST_F(SplitGguf, RefusesPartsThatDoNotFit) {
  const auto first = Write("m-00001-of-00002.gguf", 0, 2, "a");
  EXPECT_ERROR(Checkpoint{first}, FileError, "1 of the 2 files of the model is missing",
               "m-00002-of-00002.gguf", "download");
  const auto second = Write("m-00002-of-00002.gguf", 1, 2, "a");
  EXPECT_ERROR(Checkpoint{second}, FileError, "part 2 of 2", "name the first", "m-00001-of-00002");
  EXPECT_ERROR(Checkpoint{first}, FileError, "tensor 'a' is also in", "m-00001-of-00002");
  Write("m-00002-of-00002.gguf", 0, 2, "b");
  EXPECT_ERROR(Checkpoint{first}, FileError, "m-00002-of-00002.gguf", "is not part 2");
  EXPECT_ERROR(Checkpoint{Write("m.gguf", 0, 2, "a")}, FileError,
               "does not end in -00001-of-00002");
}

}  // namespace
}  // namespace litecache::io
