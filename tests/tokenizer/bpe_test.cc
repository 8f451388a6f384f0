#include "tokenizer/bpe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "test_seed.h"
#include "tokenizer/merge_queue.h"
#include "tokenizer/utf8.h"

namespace litecache::tokenizer {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Json = nlohmann::json;

std::vector<int32_t> Encode(const Bpe& bpe, std::string_view word) {
  Bpe::Encoder encoder(bpe);
  std::vector<int32_t> ids;
  encoder.Encode(word, &ids);
  return ids;
}

// The definition: merge the leftmost pair of lowest rank until no pair can be merged. Quadratic.
std::vector<int32_t> EncodeByDefinition(
    const std::map<std::string, int32_t>& vocab,
    const std::vector<std::pair<std::string, std::string>>& merges, std::string_view word) {
  std::vector<std::string> parts;
  for (size_t offset = 0; offset < word.size();) {
    const size_t begin = offset;
    NextCodePoint(word, &offset);
    parts.emplace_back(word.substr(begin, offset - begin));
  }
  std::map<std::pair<std::string, std::string>, size_t> rank;
  for (size_t i = 0; i < merges.size(); ++i) rank[merges[i]] = i;
  while (true) {
    size_t best = merges.size();
    size_t where = 0;
    for (size_t i = 0; i + 1 < parts.size(); ++i) {
      const auto it = rank.find({parts[i], parts[i + 1]});
      if (it != rank.end() && it->second < best) {
        best = it->second;
        where = i;
      }
    }
    if (best == merges.size()) break;
    parts[where] += parts[where + 1];
    parts.erase(parts.begin() + static_cast<ptrdiff_t>(where) + 1);
  }
  std::vector<int32_t> ids;
  for (const std::string& part : parts) ids.push_back(vocab.at(part));
  return ids;
}

TEST(Bpe, EqualsTheDefinitionOnRandomVocabularies) {
  auto random = testing::TestRandom(2);
  const std::vector<std::string> letters = {"a", "b", "c", "é", "日", "▁"};
  for (int round = 0; round < 60; ++round) {
    std::map<std::string, int32_t> vocab;
    std::vector<std::string> tokens;
    for (const std::string& letter : letters) {
      vocab.emplace(letter, static_cast<int32_t>(vocab.size()));
      tokens.push_back(letter);
    }
    std::vector<std::pair<std::string, std::string>> merges;
    for (size_t count = random() % 40; count > 0; --count) {
      const std::string left = tokens[random() % tokens.size()];
      const std::string right = tokens[random() % tokens.size()];
      if (!vocab.emplace(left + right, static_cast<int32_t>(vocab.size())).second) continue;
      tokens.push_back(left + right);
      merges.emplace_back(left, right);
    }
    // Real files list merges in any order; shuffling may also put a token's parts after its own
    // merge.
    if (round % 3 == 0) std::shuffle(merges.begin(), merges.end(), random);
    Json json = {{"type", "BPE"}, {"vocab", vocab}, {"merges", merges}};
    const auto bpe = LoadBpe(json, "test");
    Bpe::Encoder encoder(*bpe);
    for (int word_index = 0; word_index < 40; ++word_index) {
      std::string word;
      const size_t kinds = 1 + random() % letters.size();
      // Words of more than 512 symbols use the other queue.
      const size_t length = word_index == 0 ? 520 + random() % 300 : random() % 40;
      for (size_t i = 0; i < length; ++i) word += letters[random() % kinds];
      std::vector<int32_t> ids;
      encoder.Encode(word, &ids);
      ASSERT_EQ(ids, EncodeByDefinition(vocab, merges, word)) << json.dump() << " " << word;
      ids.clear();
      encoder.Encode(word, &ids);  // answered from the encoder's cache
      ASSERT_EQ(ids, EncodeByDefinition(vocab, merges, word));
    }
  }
}

TEST(Bpe, UnknownCharacters) {
  Json json = {{"vocab", {{"a", 0}, {"<unk>", 1}, {"b", 2}}}, {"merges", Json::array()}};
  EXPECT_THAT(Encode(*LoadBpe(json, "t"), "axyb"), ElementsAre(0, 2));
  json["unk_token"] = "<unk>";
  EXPECT_THAT(Encode(*LoadBpe(json, "t"), "axyb"), ElementsAre(0, 1, 1, 2));
  json["fuse_unk"] = true;
  EXPECT_THAT(Encode(*LoadBpe(json, "t"), "axyb日"), ElementsAre(0, 1, 2, 1));
  json["unk_token"] = "missing";
  EXPECT_THAT(Encode(*LoadBpe(json, "t"), "ab"), ElementsAre(0, 2));
  EXPECT_THROW(Encode(*LoadBpe(json, "t"), "axb"), InvalidArgument);
}

TEST(Bpe, ByteFallback) {
  Json json = {{"vocab", {{"a", 0}, {"<unk>", 1}, {"<0xC3>", 2}, {"<0xA9>", 3}}},
               {"merges", Json::array()},
               {"unk_token", "<unk>"},
               {"byte_fallback", true}};
  EXPECT_THAT(Encode(*LoadBpe(json, "t"), "aé"), ElementsAre(0, 2, 3));
  EXPECT_THAT(Encode(*LoadBpe(json, "t"), "aè"), ElementsAre(0, 1));  // <0xA8> is missing
}

TEST(Bpe, IgnoreMerges) {
  Json json = {{"vocab", {{"a", 0}, {"b", 1}, {"ab", 2}}}, {"merges", Json::array()}};
  EXPECT_THAT(Encode(*LoadBpe(json, "t"), "ab"), ElementsAre(0, 1));
  json["ignore_merges"] = true;
  EXPECT_THAT(Encode(*LoadBpe(json, "t"), "ab"), ElementsAre(2));
  EXPECT_THAT(Encode(*LoadBpe(json, "t"), ""), IsEmpty());
}

TEST(Bpe, Affixes) {
  const Json json = {{"vocab", {{"a", 0}, {"##b", 1}, {"##b</w>", 2}, {"ab</w>", 3}, {"a</w>", 4}}},
                     {"merges", {"a ##b</w>"}},
                     {"continuing_subword_prefix", "##"},
                     {"end_of_word_suffix", "</w>"}};
  const auto bpe = LoadBpe(json, "t");
  EXPECT_THAT(Encode(*bpe, "ab"), ElementsAre(3));
  EXPECT_THAT(Encode(*bpe, "abb"), ElementsAre(0, 1, 2));
  EXPECT_THAT(Encode(*bpe, "a"), ElementsAre(4));
}

// The error for each malformed model.
TEST(Bpe, RefusesMalformedModels) {
  const auto error = [](const std::string& text) -> std::string {
    try {
      LoadBpe(Json::parse(text), "file: model");
    } catch (const Error& e) {
      return e.what();
    }
    return "no error";
  };
  EXPECT_THAT(error("[]"), HasSubstr("not an object"));
  EXPECT_THAT(error(R"({"type":"Unigram"})"), HasSubstr("\"Unigram\""));
  EXPECT_THAT(error(R"({"merges":[]})"), HasSubstr("model.vocab: missing"));
  EXPECT_THAT(error(R"({"vocab":{}})"), HasSubstr("model.merges: missing"));
  EXPECT_THAT(error(R"({"vocab":[],"merges":[]})"), HasSubstr("not an object"));
  EXPECT_THAT(error(R"({"vocab":{"a":-1},"merges":[]})"), HasSubstr("outside"));
  EXPECT_THAT(error(R"({"vocab":{"a":4294967296},"merges":[]})"), HasSubstr("outside"));
  EXPECT_THAT(error(R"({"vocab":{"a":99999999999999999999},"merges":[]})"),
              HasSubstr("not a token id"));
  EXPECT_THAT(error(R"({"vocab":{"a":1.5},"merges":[]})"), HasSubstr("not a token id"));
  EXPECT_THAT(error(R"({"vocab":{"a":0,"b":0},"merges":[]})"), HasSubstr("given twice"));
  EXPECT_THAT(error(R"({"vocab":{"a":0},"merges":["a b"]})"),
              HasSubstr("\"b\" of \"a b\" is not in the vocabulary"));
  EXPECT_THAT(error(R"({"vocab":{"a":0,"b":1},"merges":[["a","b"]]})"), HasSubstr("\"ab\""));
  EXPECT_THAT(error(R"({"vocab":{"a":0},"merges":["a"]})"), HasSubstr("not a pair"));
  EXPECT_THAT(error(R"({"vocab":{"a":0},"merges":["a a a"]})"), HasSubstr("not a pair"));
  EXPECT_THAT(error(R"({"vocab":{"a":0},"merges":[["a"]]})"), HasSubstr("not a pair"));
  EXPECT_THAT(error(R"({"vocab":{"a":0},"merges":[[1,2]]})"), HasSubstr("not a pair"));
  EXPECT_THAT(error(R"({"vocab":{},"merges":[],"dropout":0.1})"), HasSubstr("dropout: 0.1"));
  EXPECT_THAT(error(R"({"vocab":{},"merges":[],"fuse_unk":1})"), HasSubstr("fuse_unk"));
  EXPECT_EQ(error(R"({"vocab":{},"merges":["#version: 0.2"],"dropout":null})"), "no error");
}

TEST(MergeRanks, PopsLikeOneHeap) {
  auto random = testing::TestRandom(3);
  for (int round = 0; round < 300; ++round) {
    MergeHeap heap;
    MergeRanks ranks(8);
    MergeCandidate a{};
    MergeCandidate b{};
    int open = 0;
    for (int step = 0; step < 200 || open > 0; ++step) {
      if (step < 200 && random() % 3 != 0) {
        const auto rank = static_cast<uint32_t>(random() % 8);
        const MergeCandidate c{rank, static_cast<int32_t>(random() % 50),
                               static_cast<int32_t>(rank)};
        heap.Push(c);
        ranks.Push(c);
        ++open;
        continue;
      }
      ASSERT_EQ(heap.Pop(&a), open > 0);
      ASSERT_EQ(ranks.Pop(&b), open > 0);
      if (open == 0) continue;
      --open;
      ASSERT_EQ(a.rank, b.rank);
      ASSERT_EQ(a.position, b.position);
      ASSERT_EQ(a.result, b.result);
    }
  }
}

}  // namespace
}  // namespace litecache::tokenizer
