// Tokenizers and chat templates of GGUF files. compare_with_reference.py compares real
// vocabularies.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "expect_error.h"
#include "io/gguf_bytes.h"
#include "temporary_directory.h"
#include "tokenizer/chat_template.h"
#include "tokenizer/tokenizer.h"

namespace litecache::tokenizer {
namespace {

using ::litecache::testing::GgufBytes;
using ::litecache::testing::Little;
using ::litecache::testing::TemporaryDirectory;
using ::testing::ElementsAre;

constexpr const char* kTokens = "tokenizer.ggml.tokens";
constexpr const char* kTypes = "tokenizer.ggml.token_type";

template <typename T>
std::string Packed(const std::vector<T>& values) {
  std::string bytes;
  for (const T value : values) bytes += Little(value);
  return bytes;
}

class GgufTokenizer : public ::testing::Test {
 protected:
  std::filesystem::path Write(const GgufBytes& bytes) const {
    return directory_.Write("m.gguf", bytes.Build());
  }
  std::shared_ptr<const Tokenizer> Load(const GgufBytes& bytes) const {
    return Tokenizer::FromModel(Write(bytes));
  }

  static GgufBytes ByteLevel(std::string_view pre) {
    return GgufBytes()
        .Text("tokenizer.ggml.model", "gpt2")
        .Text("tokenizer.ggml.pre", pre)
        .Texts(kTokens, {"<s>", "a", "b", "ab", "1", "Ġ", "Ġab", "<tool>"})
        .Array(kTypes, GgufBytes::kI32, 8, Packed<int32_t>({3, 1, 1, 1, 1, 1, 1, 4}))
        .Texts("tokenizer.ggml.merges", {"a b", "Ġ ab"});
  }
  // Scores: "ab" is joined before "bc".
  static GgufBytes SentencePiece(const std::vector<float>& scores) {
    return GgufBytes()
        .Text("tokenizer.ggml.model", "llama")
        .Texts(kTokens, {"<unk>", "<s>", "▁", "a", "b", "c", "ab", "bc", "▁ab", "<0x21>"})
        .Array(kTypes, GgufBytes::kI32, 10, Packed<int32_t>({2, 3, 1, 1, 1, 1, 1, 1, 1, 6}))
        .Array("tokenizer.ggml.scores", GgufBytes::kF32, scores.size(), Packed(scores))
        .Number("tokenizer.ggml.bos_token_id", 1)
        .Number("tokenizer.ggml.eos_token_id", 1);
  }

  const TemporaryDirectory directory_;
};

TEST_F(GgufTokenizer, ByteLevel) {
  const auto tokenizer = Load(ByteLevel("smollm"));
  EXPECT_THAT(tokenizer->Encode("ab11 ab<s><tool>"), ElementsAre(3, 4, 4, 6, 0, 7));
  EXPECT_THAT(tokenizer->Encode("a<s>", {.parse_special = false}), ElementsAre(1));
  EXPECT_EQ(tokenizer->Decode(std::vector<int32_t>{0, 6, 7}, true), " ab<tool>");
  EXPECT_TRUE(tokenizer->IsSpecial(0));
  EXPECT_FALSE(tokenizer->IsSpecial(7));
}

TEST_F(GgufTokenizer, AddsTheTokensThatTheFileNames) {
  // Llama 3's adds its first token unless the file says otherwise.
  EXPECT_THAT(Load(ByteLevel("llama-bpe").Number("tokenizer.ggml.bos_token_id", 0))->Encode("a"),
              ElementsAre(0, 1));
  EXPECT_THAT(Load(ByteLevel("llama-bpe")
                       .Number("tokenizer.ggml.bos_token_id", 0)
                       .Key("tokenizer.ggml.add_bos_token", GgufBytes::kBool, std::string(1, '\0')))
                  ->Encode("a"),
              ElementsAre(1));
  const auto both = Load(ByteLevel("gpt-2")
                             .Number("tokenizer.ggml.bos_token_id", 0)
                             .Number("tokenizer.ggml.eos_token_id", 7)
                             .Key("tokenizer.ggml.add_bos_token", GgufBytes::kBool, "\1")
                             .Key("tokenizer.ggml.add_eos_token", GgufBytes::kBool, "\1"));
  EXPECT_THAT(both->Encode("a"), ElementsAre(0, 1, 7));
  EXPECT_EQ(both->bos_id(), 0);
  EXPECT_EQ(both->eos_id(), 7);
}

TEST_F(GgufTokenizer, SentencePieceJoinsByScore) {
  const std::vector<float> scores = {0, 0, -9, -9, -9, -9, -1, -2, -3, 0};
  EXPECT_THAT(Load(SentencePiece(scores))->Encode("abc!"), ElementsAre(1, 8, 5, 9));
  std::vector<float> other = scores;
  other[7] = -0.5f;  // now "bc" comes first
  const auto tokenizer = Load(SentencePiece(other));
  EXPECT_THAT(tokenizer->Encode("abc!"), ElementsAre(1, 2, 3, 7, 9));
  EXPECT_EQ(tokenizer->Decode(std::vector<int32_t>{1, 2, 3, 7, 9}, true), "abc!");
}

// Gemma 4's: spaces as in SentencePiece, joins in the order that the file says.
TEST_F(GgufTokenizer, SentencePieceWithMerges) {
  const auto bytes = [&](const std::vector<std::string>& merges) {
    return GgufBytes()
        .Text("tokenizer.ggml.model", "gemma4")
        .Texts(kTokens,
               {"<unk>", "<bos>", "▁", "a", "b", "c", "ab", "bc", "▁ab", "<0x21>", "<call>"})
        .Array(kTypes, GgufBytes::kI32, 11, Packed<int32_t>({2, 3, 1, 1, 1, 1, 1, 1, 1, 6, 4}))
        .Texts("tokenizer.ggml.merges", merges)
        .Key("tokenizer.ggml.add_space_prefix", GgufBytes::kBool, std::string(1, '\0'))
        .Number("tokenizer.ggml.bos_token_id", 1);
  };
  const auto tokenizer = Load(bytes({"a b", "b c", "▁ ab"}));
  EXPECT_THAT(tokenizer->Encode("abc ab!<call>"), ElementsAre(1, 6, 5, 8, 9, 10));
  EXPECT_EQ(tokenizer->Decode(std::vector<int32_t>{1, 6, 5, 8, 9, 10}, true), "abc ab!<call>");
  EXPECT_THAT(Load(bytes({"b c", "a b", "▁ ab"}))->Encode("abc"), ElementsAre(1, 3, 7));
  EXPECT_ERROR(Load(bytes({"a x"})), FileError, "merges", "\"x\"");
}

TEST_F(GgufTokenizer, NamesWhatIsWrong) {
  EXPECT_EQ(Tokenizer::FindIn(Write(GgufBytes())), nullptr);
  EXPECT_ERROR(Load(GgufBytes()), FileError, "m.gguf", "has no tokenizer");
  EXPECT_ERROR(Load(ByteLevel("falcon")), Unsupported, "m.gguf", "tokenizer.ggml.pre", "\"falcon\"",
               "llama-bpe");
  EXPECT_ERROR(Load(ByteLevel("default")), Unsupported, "a recent llama.cpp");
  EXPECT_ERROR(Load(GgufBytes().Text("tokenizer.ggml.model", "bert")), Unsupported,
               "tokenizer.ggml.model", "\"bert\"");
  EXPECT_ERROR(Load(GgufBytes().Number("tokenizer.ggml.model", 1)), FileError,
               "tokenizer.ggml.model");
  EXPECT_ERROR(Load(GgufBytes().Text("tokenizer.ggml.model", "gpt2")), FileError, kTokens,
               "missing");
  EXPECT_ERROR(Load(GgufBytes()
                        .Text("tokenizer.ggml.model", "gpt2")
                        .Texts(kTokens, {"a"})
                        .Array(kTypes, GgufBytes::kI32, 2, std::string(8, '\1'))),
               FileError, kTokens, "each of the 2 types");
  EXPECT_ERROR(Load(GgufBytes().Text("tokenizer.ggml.model", "gpt2").Texts(kTokens, {"a", "\xff"})),
               FileError, "tokens[1] is not UTF-8");
  EXPECT_ERROR(Load(ByteLevel("smollm").Number("tokenizer.ggml.eos_token_id", 8)), FileError,
               "eos_token_id", "not one of the 8 tokens");
  EXPECT_ERROR(Load(SentencePiece({0, 1})), FileError, "scores", "each of the 10 tokens");
  EXPECT_ERROR(Load(SentencePiece(std::vector<float>(10, std::nanf("")))), FileError, "scores",
               "numbers");
}

TEST_F(GgufTokenizer, ChatTemplates) {
  EXPECT_FALSE(ChatTemplate::FindIn(Write(ByteLevel("smollm"))).has_value());
  const auto found = ChatTemplate::FindIn(
      Write(ByteLevel("smollm")
                .Number("tokenizer.ggml.bos_token_id", 0)
                .Text("tokenizer.chat_template", "{{ bos_token }}{{ messages[0].content }}")
                .Texts("tokenizer.chat_templates", {"tool_use"})
                .Text("tokenizer.chat_template.tool_use", "tools")));
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->Apply({{{"role", "user"}, {"content", "x"}}}), "<s>x");
  EXPECT_EQ(found->Source(true), "tools");
  // Numbers that mean no token.
  for (const char* key : {"tokenizer.ggml.padding_token_id", "tokenizer.ggml.unknown_token_id"}) {
    const GgufBytes bytes = ByteLevel("smollm")
                                .Number(key, 0xffffffff)
                                .Text("tokenizer.chat_template",
                                      "{{ pad_token }}{{ unk_token }}{{ messages[0].content }}");
    EXPECT_EQ(ChatTemplate::FindIn(Write(bytes))->Apply({{{"role", "user"}, {"content", "x"}}}),
              "x")
        << key;
    EXPECT_THAT(Load(bytes)->Encode("a"), ElementsAre(1)) << key;
  }
  EXPECT_ERROR(ChatTemplate::FindIn(Write(GgufBytes().Text("tokenizer.chat_template", "{% x"))),
               FileError, "m.gguf", "chat_template");
}

}  // namespace
}  // namespace litecache::tokenizer
