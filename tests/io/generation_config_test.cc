#include "io/generation_config.h"

#include "expect_error.h"
#include "temporary_directory.h"

namespace litecache::io {
namespace {

TEST(GenerationConfigTest, ReadsPublishedFields) {
  const auto config = GenerationConfig::FromJson(
      R"({"bos_token_id": 128000, "do_sample": true, "eos_token_id": [128001, 128008, 128009],
          "temperature": 0.6, "top_p": 0.9, "top_k": 20, "repetition_penalty": 1.05, "min_p": 0,
          "max_length": 4096, "max_new_tokens": 2048, "pad_token_id": 151643,
          "transformers_version": "4.42.3", "something_new": {"a": [1]}})",
      "g.json");
  EXPECT_EQ(config.do_sample, true);
  EXPECT_EQ(config.temperature, 0.6);
  EXPECT_EQ(config.top_p, 0.9);
  EXPECT_EQ(config.top_k, 20);
  EXPECT_EQ(config.min_p, 0.0);
  EXPECT_EQ(config.repetition_penalty, 1.05);
  EXPECT_EQ(config.eos_ids, (std::vector<int32_t>{128001, 128008, 128009}));
  EXPECT_EQ(config.bos_id, 128000);
  EXPECT_EQ(config.pad_id, 151643);
  EXPECT_EQ(config.max_length, 4096);
  EXPECT_EQ(config.max_new_tokens, 2048);
}

TEST(GenerationConfigTest, AbsentFieldsAndFiles) {
  const auto empty = GenerationConfig::FromJson(
      R"({"temperature": null, "eos_token_id": 2, "pad_token_id": -1})", "g.json");
  EXPECT_FALSE(empty.temperature.has_value());
  EXPECT_FALSE(empty.pad_id.has_value());
  EXPECT_EQ(empty.eos_ids, std::vector<int32_t>{2});
  const ::litecache::testing::TemporaryDirectory directory;
  EXPECT_TRUE(GenerationConfig::FromModel(directory.path()).eos_ids.empty());
  directory.Write("generation_config.json", R"({"top_k": 5})");
  EXPECT_EQ(GenerationConfig::FromModel(directory.path()).top_k, 5);
}

TEST(GenerationConfigTest, RefusesWrongValues) {
  const auto parse = [](const std::string& text) { GenerationConfig::FromJson(text, "g.json"); };
  EXPECT_ERROR(parse("[]"), FileError, "g.json");
  EXPECT_ERROR(parse(R"({"temperature": "hot"})"), FileError, "'temperature' = \"hot\"");
  EXPECT_ERROR(parse(R"({"temperature": -1})"), FileError, "'temperature' = -1");
  EXPECT_ERROR(parse(R"({"top_p": 1.5})"), FileError, "'top_p'");
  EXPECT_ERROR(parse(R"({"top_k": 2.5})"), FileError, "'top_k'");
  EXPECT_ERROR(parse(R"({"repetition_penalty": 0})"), FileError, "'repetition_penalty'");
  EXPECT_ERROR(parse(R"({"do_sample": 1})"), FileError, "'do_sample'");
  EXPECT_ERROR(parse(R"({"eos_token_id": ["</s>"]})"), FileError, "'eos_token_id'");
  EXPECT_ERROR(parse(R"({"eos_token_id": 4294967296})"), FileError, "'eos_token_id'");
}

}  // namespace
}  // namespace litecache::io
