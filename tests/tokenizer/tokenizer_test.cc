#include "tokenizer/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "source_directory.h"
#include "test_seed.h"
#include "tokenizer/stream_decoder.h"
#include "tokenizer/utf8.h"

namespace litecache::tokenizer {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Json = nlohmann::json;

std::string Read(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

std::filesystem::path Fixture(const std::string& name) {
  return SourceDirectory() / "tests/tokenizer/fixtures" / name;
}

std::string Streamed(const std::shared_ptr<const Tokenizer>& tokenizer,
                     const std::vector<int32_t>& ids, bool skip_special,
                     const std::vector<int32_t>& kept = {}) {
  StreamDecoder stream(tokenizer, skip_special, kept);
  std::string text;
  for (const int32_t id : ids) {
    const std::string part = stream.Add(id);
    EXPECT_TRUE(IsValidUtf8(part));
    text += part;
  }
  return text + stream.Flush();
}

class Golden : public ::testing::TestWithParam<std::string> {};

// The golden files contain the results of the `tokenizers` package.
TEST_P(Golden, EqualsThePackage) {
  const auto tokenizer = Tokenizer::FromFile(Fixture(GetParam() + ".json"));
  for (const Json& c : Json::parse(Read(Fixture(GetParam() + ".golden.json")))) {
    const std::string text = c["text"];
    const std::vector<int32_t> ids = tokenizer->Encode(text);
    EXPECT_EQ(Json(ids), c["ids"]) << text;
    EXPECT_EQ(Json(tokenizer->Encode(text, {.add_special_tokens = false})), c["plain"]) << text;
    EXPECT_EQ(Json(tokenizer->Encode(text, {.add_special_tokens = false, .parse_special = false})),
              c["literal"])
        << text;
    EXPECT_EQ(tokenizer->Decode(ids, false), c["decoded"].get<std::string>());
    EXPECT_EQ(tokenizer->Decode(ids, true), c["decoded_plain"].get<std::string>());
    EXPECT_EQ(Streamed(tokenizer, ids, false), c["decoded"].get<std::string>());
    EXPECT_EQ(Streamed(tokenizer, ids, true), c["decoded_plain"].get<std::string>());
  }
}

TEST_P(Golden, StreamsAnyIds) {
  const auto tokenizer = Tokenizer::FromFile(Fixture(GetParam() + ".json"));
  auto random = testing::TestRandom(4);
  for (int round = 0; round < 500; ++round) {
    std::vector<int32_t> ids;
    for (size_t i = random() % 30; i > 0; --i) {
      ids.push_back(static_cast<int32_t>(random() % (tokenizer->vocab_size() + 3)) - 1);
    }
    for (const bool skip_special : {false, true}) {
      const std::string text = tokenizer->Decode(ids, skip_special);
      ASSERT_TRUE(IsValidUtf8(text));
      ASSERT_EQ(Streamed(tokenizer, ids, skip_special), text);
    }
    // Some special tokens of the text may be kept: as if only the others were there.
    const std::vector<int32_t> kept(ids.begin(),
                                    ids.begin() + static_cast<int64_t>(ids.size() / 2));
    std::vector<int32_t> rest;
    for (const int32_t id : ids) {
      const bool keeps = std::find(kept.begin(), kept.end(), id) != kept.end();
      if (keeps || !tokenizer->IsSpecial(id)) rest.push_back(id);
    }
    ASSERT_EQ(Streamed(tokenizer, ids, true, kept), tokenizer->Decode(rest, false));
  }
}

// Decoding returns text that was not normalized.
TEST_P(Golden, RoundTripsRandomText) {
  Json json = Json::parse(Read(Fixture(GetParam() + ".json")));
  if (json["normalizer"]["type"] == "NFC") json["normalizer"] = nullptr;
  const auto tokenizer = Tokenizer::FromJson(json.dump());
  auto random = testing::TestRandom(5);
  for (int round = 0; round < 500; ++round) {
    std::string text;
    for (size_t i = random() % 40; i > 0; --i) {
      const char32_t limits[] = {0x80, 0x800, 0x10000, 0x110000};
      const char32_t c = random() % limits[random() % 4];
      // In one of the vocabularies U+2581 stands for a space.
      if ((c >= 0xD800 && c < 0xE000) || c == 0x2581) continue;
      AppendUtf8(c, &text);
    }
    const auto ids = tokenizer->Encode(text, {.add_special_tokens = false, .parse_special = false});
    ASSERT_EQ(tokenizer->Decode(ids, false), text);
  }
}

TEST_P(Golden, ManyThreadsShareOne) {
  const auto tokenizer = Tokenizer::FromFile(Fixture(GetParam() + ".json"));
  const std::string text = Read(Fixture("../tokenizer_test.cc"));
  const std::vector<int32_t> expected = tokenizer->Encode(text);
  std::vector<std::vector<int32_t>> results(8);
  std::vector<std::thread> threads;
  for (auto& result : results) {
    threads.emplace_back([&] { result = tokenizer->Encode(text); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& result : results) EXPECT_EQ(result, expected);
}

INSTANTIATE_TEST_SUITE_P(Tokenizer, Golden, ::testing::Values("byte_level", "spm"),
                         [](const auto& info) { return info.param; });

TEST(Tokenizer, ReadsInvalidUtf8AsReplacementCharacters) {
  const auto tokenizer = Tokenizer::FromFile(Fixture("byte_level.json"));
  EXPECT_EQ(tokenizer->Encode("a\xFFz\xE2\x82"), tokenizer->Encode("a\uFFFDz\uFFFD"));
  EXPECT_EQ(tokenizer->Encode(std::string_view("\0", 1)).size(), 2u);
}

TEST(Tokenizer, NamesTokens) {
  const auto tokenizer = Tokenizer::FromFile(Fixture("byte_level.json"));
  const int32_t s = tokenizer->TokenToId("<s>").value();
  EXPECT_EQ(tokenizer->IdToToken(s), "<s>");
  EXPECT_TRUE(tokenizer->IsSpecial(s));
  EXPECT_FALSE(tokenizer->IsSpecial(tokenizer->TokenToId("<tool>").value()));
  EXPECT_FALSE(tokenizer->IsSpecial(0));
  EXPECT_EQ(tokenizer->TokenToId("no such token"), std::nullopt);
  for (const int32_t id : {-1, tokenizer->vocab_size(), 1 << 30}) {
    EXPECT_EQ(tokenizer->IdToToken(id), std::nullopt);
    EXPECT_FALSE(tokenizer->IsSpecial(id));
    EXPECT_EQ(tokenizer->Decode(std::vector<int32_t>{id}, false), "");
  }
  for (int32_t id = 0; id < tokenizer->vocab_size(); ++id) {
    EXPECT_EQ(tokenizer->TokenToId(tokenizer->IdToToken(id).value()), id);
  }
  EXPECT_EQ(tokenizer->bos_id(), std::nullopt);
}

Json Small() {
  return Json::parse(R"({"version":"1.0","added_tokens":[],"normalizer":null,"pre_tokenizer":null,
    "post_processor":null,"decoder":{"type":"Fuse"},
    "model":{"type":"BPE","vocab":{"a":0,"b":1," ":2,"x":3,"A":4},"merges":[]}})");
}

Json Added(int id, const std::string& content) { return {{"id", id}, {"content", content}}; }

TEST(Tokenizer, AddedTokens) {
  Json json = Small();
  json["added_tokens"] = Json::array({Added(5, "ab"), Added(6, "abx")});
  EXPECT_THAT(Tokenizer::FromJson(json.dump())->Encode("abxabaab"), ElementsAre(6, 5, 0, 5));

  json["added_tokens"][0]["single_word"] = true;
  // The longest token is found first; if it is rejected, its text is ordinary.
  EXPECT_THAT(Tokenizer::FromJson(json.dump())->Encode("ab xab"), ElementsAre(5, 2, 3, 0, 1));

  json["added_tokens"] = Json::array({Added(5, "x")});
  json["added_tokens"][0].update({{"lstrip", true}, {"rstrip", true}});
  EXPECT_THAT(Tokenizer::FromJson(json.dump())->Encode("a  x  x a"), ElementsAre(0, 3, 3, 0));

  // A token that the model already has keeps its id, whatever the file says.
  json["added_tokens"] = Json::array({Added(77, "b"), Added(5, "yy")});
  EXPECT_EQ(Tokenizer::FromJson(json.dump())->TokenToId("b"), 1);
  EXPECT_EQ(Tokenizer::FromJson(json.dump())->TokenToId("yy"), 5);
  EXPECT_EQ(Tokenizer::FromJson(json.dump())->vocab_size(), 6);
}

TEST(Tokenizer, NormalizedAddedTokensMatchNormalizedText) {
  Json json = Small();
  json["normalizer"] = {{"type", "Lowercase"}};
  json["added_tokens"] = Json::array({Added(5, "BA"), Added(6, "AB")});
  json["added_tokens"][1]["normalized"] = false;
  EXPECT_THAT(Tokenizer::FromJson(json.dump())->Encode("baBaAbABxA"),
              ElementsAre(5, 5, 0, 1, 6, 3, 0));
}

TEST(Tokenizer, SpecialTokensInTextCanBeText) {
  Json json = Small();
  json["added_tokens"] = Json::array({Added(5, "ab")});
  json["added_tokens"][0]["special"] = true;
  const auto tokenizer = Tokenizer::FromJson(json.dump());
  EXPECT_THAT(tokenizer->Encode("xab"), ElementsAre(3, 5));
  EXPECT_THAT(tokenizer->Encode("xab", {.parse_special = false}), ElementsAre(3, 0, 1));
  EXPECT_EQ(tokenizer->Decode(std::vector<int32_t>{3, 5, 0}, true), "xa");
  // A whole word that is a token is that token, but not a special one.
  json["model"]["ignore_merges"] = true;
  json["model"]["vocab"]["ab"] = 5;
  const auto words = Tokenizer::FromJson(json.dump());
  EXPECT_THAT(words->Encode("ab"), ElementsAre(5));
  EXPECT_THAT(words->Encode("ab", {.parse_special = false}), ElementsAre(0, 1));
}

TEST(Tokenizer, ConfigFilesNameAndAddTokens) {
  const std::string config = R"({"bos_token":{"content":"<s>","lstrip":false},"eos_token":"x",
    "pad_token":null,"added_tokens_decoder":{"9":{"content":"<two>","special":true},
    "8":{"content":"<one>","special":false}},"additional_special_tokens":["<three>"]})";
  const auto tokenizer = Tokenizer::FromJson(Small().dump(), "t", config, R"({"eos_token":"b"})");
  EXPECT_EQ(tokenizer->TokenToId("<one>"), 5);
  EXPECT_EQ(tokenizer->TokenToId("<two>"), 6);
  EXPECT_EQ(tokenizer->bos_id(), tokenizer->TokenToId("<s>"));
  EXPECT_EQ(tokenizer->eos_id(), 3);
  EXPECT_TRUE(tokenizer->IsSpecial(6) && !tokenizer->IsSpecial(5) && tokenizer->IsSpecial(3));
  EXPECT_TRUE(tokenizer->TokenToId("<three>").has_value());
  EXPECT_EQ(Tokenizer::FromJson(Small().dump(), "t", {}, R"({"eos_token":"b"})")->eos_id(), 1);
}

TEST(Tokenizer, ReadsDirectories) {
  const std::filesystem::path folder = std::filesystem::path(::testing::TempDir()) /
                                       ("tokenizer_test_" + std::to_string(testing::TestSeed()));
  std::filesystem::create_directories(folder);
  EXPECT_THROW(Tokenizer::FromModel(folder), FileError);
  std::ofstream(folder / "tokenizer.json") << Small().dump();
  EXPECT_EQ(Tokenizer::FromModel(folder)->bos_id(), std::nullopt);
  std::ofstream(folder / "tokenizer_config.json") << R"({"bos_token":"a"})";
  EXPECT_EQ(Tokenizer::FromModel(folder)->bos_id(), 0);
  std::ofstream(folder / "tokenizer_config.json") << "{";
  EXPECT_THROW(Tokenizer::FromModel(folder), FileError);
  EXPECT_THROW(Tokenizer::FromFile(folder), FileError);
  EXPECT_THROW(Tokenizer::FromFile(folder / "missing.json"), FileError);
  std::filesystem::remove_all(folder);
}

TEST(Tokenizer, RefusesMalformedFiles) {
  const auto error = [](const std::string& text) -> std::string {
    try {
      Tokenizer::FromJson(text, "dir/tokenizer.json");
    } catch (const Error& e) {
      return e.what();
    }
    return "no error";
  };
  EXPECT_THAT(error(""), HasSubstr("dir/tokenizer.json:1:1: not valid JSON"));
  EXPECT_THAT(error("{\"model\":"), HasSubstr("not valid JSON"));
  EXPECT_THAT(error("[1]"), HasSubstr("not a JSON object"));
  EXPECT_THAT(error("{\"model\":{\"vocab\":{\"\xFF\":1}}}"), HasSubstr("not valid JSON"));
  EXPECT_THAT(error("{}"), HasSubstr("dir/tokenizer.json: model: missing"));
  const auto with = [&](const std::string& key, const Json& value) {
    Json json = Small();
    json[key] = value;
    return error(json.dump());
  };
  EXPECT_THAT(with("version", "2.0"), HasSubstr("version: \"2.0\""));
  EXPECT_THAT(with("decoder", {{"type", "WordPiece"}}), HasSubstr("decoder.type: the decoder"));
  EXPECT_THAT(with("normalizer", 3), HasSubstr("normalizer.type: missing"));
  EXPECT_THAT(with("added_tokens", 3), HasSubstr("added_tokens: 3 is not an array"));
  EXPECT_THAT(with("added_tokens", {3}), HasSubstr("added_tokens[0]: 3 is not an object"));
  EXPECT_THAT(with("added_tokens", {{{"id", 5}}}), HasSubstr("added_tokens[0].content: missing"));
  EXPECT_THAT(with("added_tokens", {{{"id", -5}, {"content", "y"}}}), HasSubstr("outside"));
  EXPECT_THAT(with("added_tokens", {{{"id", 5}, {"content", std::string(5000, 'y')}}}),
              HasSubstr("5000 bytes"));
  // The deepest nesting that a file can have must not exhaust the stack.
  const std::string deep(200000, '[');
  EXPECT_THAT(error(deep), HasSubstr("deeper than 128 levels"));
  EXPECT_THAT(error("{\"model\":" + deep + std::string(200000, ']') + "}"),
              HasSubstr("deeper than 128 levels"));
}

}  // namespace
}  // namespace litecache::tokenizer
