#include "grammar/grammar.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "base/error.h"
#include "grammar/grammar_testing.h"
#include "grammar/match_cache.h"
#include "test_seed.h"

namespace litecache::grammar {
namespace {

using ::testing::HasSubstr;
using testing::TestRandom;

std::shared_ptr<Grammar> Of(const char* schema) {
  return Grammar::OfSchema(Json::parse(schema), ByteVocabulary());
}

void ExpectRefused(const char* schema, const char* path, const char* what) {
  try {
    Of(schema);
    ADD_FAILURE() << schema << " was taken";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr(path));
    EXPECT_THAT(error.what(), HasSubstr(what));
  }
}

// Every byte, every character of a synthetic language, and random strings of JSON's characters.
std::shared_ptr<const Vocabulary> RandomVocabulary(std::mt19937_64& random, size_t size) {
  std::vector<std::string> bytes;
  for (int b = 0; b < 256; ++b) bytes.emplace_back(1, static_cast<char>(b));
  const std::vector<std::string> pieces = {"\"", "{", "}", "[",    "]",    ",",    ":",    " ",
                                           "\n", "a", "b", "1",    "0",    "-",    ".",    "e",
                                           "\\", "u", "é", "\xF0", "\x9F", "true", "null", "\t"};
  while (bytes.size() < size) {
    std::string token;
    for (size_t n = 1 + random() % 6; n > 0; --n) token += pieces[random() % pieces.size()];
    bytes.push_back(std::move(token));
  }
  bytes.emplace_back();  // a token without text
  return std::make_shared<Vocabulary>(std::move(bytes));
}

constexpr const char* kSchema = R"({
  "type": "object", "required": ["name", "tags"], "additionalProperties": {"type": "integer"},
  "properties": {
    "name": {"type": "string", "maxLength": 5},
    "ab": {"enum": ["é", 1, null]},
    "tags": {"type": "array", "items": {"anyOf": [{"type": "string"}, {"$ref": "#"}]}},
    "re": {"type": "string", "pattern": "^(a|b)*1$"}}})";

TEST(Grammar, AMaskIsWhatTheBytesSay) {
  auto random = TestRandom(1);
  const auto vocabulary = RandomVocabulary(random, 3000);
  const auto grammar = Grammar::OfSchema(Json::parse(kSchema), vocabulary);
  MatchCache cache(grammar->automaton(), *vocabulary);
  for (int walk = 0; walk < 30; ++walk) {
    MatchCache::Place place = cache.start();
    for (int step = 0; step < 40 && cache.Open(place); ++step) {
      const auto mask = cache.Mask(place);
      std::vector<int32_t> allowed;
      for (int32_t token = 0; token < static_cast<int32_t>(vocabulary->size()); ++token) {
        const std::string& bytes = vocabulary->bytes(token);
        const bool fits = !bytes.empty() && cache.Step(place, bytes) != MatchCache::kNowhere;
        ASSERT_EQ(MaskAllows(*mask, token), fits) << bytes;
        if (fits) allowed.push_back(token);
      }
      ASSERT_FALSE(allowed.empty());
      place = cache.Step(place, vocabulary->bytes(allowed[random() % allowed.size()]));
    }
  }
}

TEST(Grammar, ACacheMayBeReplacedAtAnyPlace) {
  auto random = TestRandom(2);
  const auto vocabulary = RandomVocabulary(random, 600);
  const auto grammar = Grammar::OfSchema(Json::parse(kSchema), vocabulary);
  auto cache = std::make_unique<MatchCache>(grammar->automaton(), *vocabulary);
  MatchCache kept(grammar->automaton(), *vocabulary);
  MatchCache::Place place = cache->start(), same = kept.start();
  for (int step = 0; step < 300; ++step) {
    ASSERT_EQ(*cache->Mask(place), *kept.Mask(same));
    ASSERT_EQ(cache->Complete(place), kept.Complete(same));
    std::vector<int32_t> allowed;
    for (int32_t token = 0; token < 600; ++token) {
      if (MaskAllows(*kept.Mask(same), token)) allowed.push_back(token);
    }
    if (allowed.empty()) {
      place = cache->start(), same = kept.start();
      continue;
    }
    const std::string& bytes = vocabulary->bytes(allowed[random() % allowed.size()]);
    place = cache->Step(place, bytes);
    same = kept.Step(same, bytes);
    auto fresh = std::make_unique<MatchCache>(grammar->automaton(), *vocabulary);
    place = fresh->Import(*cache, place);
    cache = std::move(fresh);
  }
}

TEST(Grammar, AMaskInPiecesIsTheSame) {
  auto random = TestRandom(7);
  const auto vocabulary = RandomVocabulary(random, 3000);
  for (const auto& grammar : {Grammar::OfSchema(Json::parse(kSchema), vocabulary),
                              Grammar::OfPattern("([^q]*[ab1{][^q]{20}q?){3}", vocabulary)}) {
    auto cache = std::make_unique<MatchCache>(grammar->automaton(), *vocabulary);
    MatchCache kept(grammar->automaton(), *vocabulary);
    MatchCache::Place place = cache->start(), same = kept.start();
    for (int step = 0; step < 40; ++step) {
      MatchCache::MaskWalk walk = cache->BeginMask(place);
      while (!cache->ContinueMask(&walk, 1 + static_cast<int64_t>(random() % 3000))) {
        if (random() % 4 != 0) continue;
        auto fresh = std::make_unique<MatchCache>(grammar->automaton(), *vocabulary);
        place = fresh->Import(*cache, place);
        walk = fresh->Import(*cache, std::move(walk));
        cache = std::move(fresh);
      }
      ASSERT_EQ(*cache->FindMask(place), *kept.Mask(same));
      std::vector<int32_t> allowed;
      for (int32_t token = 0; token < static_cast<int32_t>(vocabulary->size()); ++token) {
        if (MaskAllows(*kept.Mask(same), token)) allowed.push_back(token);
      }
      if (allowed.empty()) break;
      const std::string& bytes = vocabulary->bytes(allowed[random() % allowed.size()]);
      place = cache->Step(place, bytes);
      same = kept.Step(same, bytes);
    }
  }
}

// Of this pattern nearly every text is a place of its own: one mask fills more than one cache.
TEST(Grammar, AConstraintWorksInPieces) {
  auto random = TestRandom(8);
  std::vector<std::string> tokens = {"a", "b"};
  while (tokens.size() < 4000) {
    std::string& token = tokens.emplace_back();
    for (size_t length = 1 + random() % 16; token.size() < length;) token += "ab"[random() % 2];
  }
  const auto vocabulary = std::make_shared<const Vocabulary>(tokens);
  const auto grammar = Grammar::OfPattern("([ab]*a[ab]{16}c?){2}", vocabulary);
  const auto at = grammar->NewConstraint();
  for (int step = 0; step < 4; ++step) {
    int pieces = 1;
    while (!at->Prepare(1000)) ++pieces;
    EXPECT_GT(pieces, 20);
    for (size_t token = 0; token < tokens.size(); ++token) {
      ASSERT_TRUE(MaskAllows(at->Mask(), static_cast<int32_t>(token))) << tokens[token];
    }
    EXPECT_TRUE(at->Clone()->Prepare(0));
    at->Accept(0);
  }
}

TEST(Grammar, SamplesAreIndependent) {
  const auto grammar = Of(R"({"type": "string"})");
  const auto first = grammar->NewConstraint();
  for (const char c : std::string_view("\"ab")) first->Accept(c);
  const auto second = first->Clone();
  second->Accept('"');
  EXPECT_TRUE(second->Finished());
  EXPECT_FALSE(first->Complete());
  EXPECT_TRUE(MaskAllows(first->Mask(), 'c'));
}

TEST(Grammar, EndsWhereNothingCanFollow) {
  const auto number = Of(R"({"type": "integer", "maximum": 20, "minimum": 0})")->NewConstraint();
  number->Accept('2');
  EXPECT_TRUE(number->Complete());
  EXPECT_FALSE(number->Finished());
  number->Accept('0');
  EXPECT_TRUE(number->Finished());
}

TEST(Grammar, StringsAreValidUtf8) {
  const auto grammar = Of(R"({"type": "string", "maxLength": 2})");
  EXPECT_TRUE(Accepts(*grammar, "\"\xC3\xA9\xF0\x9F\x98\x80\""));
  EXPECT_TRUE(Accepts(*grammar, R"("\u00e9\ud83d\uDE00")"));
  for (const char* bad :
       {"\"\xC0\x80\"", "\"\xED\xA0\x80\"", "\"\xF4\x90\x80\x80\"", "\"\xE9\"", "\"\x1f\"",
        R"("\ud83d")", R"("\ud83dx")", R"("\ude00")", R"("abc")", R"("\x")"}) {
    EXPECT_FALSE(Accepts(*grammar, bad)) << bad;
  }
}

TEST(Grammar, WhiteSpaceHasAnEnd) {
  const auto grammar = Of("{}");
  EXPECT_TRUE(Accepts(*grammar, "[\n  1,\n\t{\"a\": 2}\n]"));
  EXPECT_TRUE(Accepts(*grammar, " [1]"));
  EXPECT_FALSE(Accepts(*grammar, "[  1]"));
  EXPECT_FALSE(Accepts(*grammar, "[\n\n1]"));
  EXPECT_FALSE(Accepts(*grammar, "[1] "));
  for (const auto& [blank, most] : {std::pair(' ', 24), std::pair('\t', 6)}) {
    EXPECT_TRUE(Accepts(*grammar, "[\n" + std::string(most, blank) + "1]")) << most;
    EXPECT_FALSE(Accepts(*grammar, "[\n" + std::string(most + 1, blank) + "1]")) << most;
  }
}

TEST(Grammar, NestingHasAnEnd) {
  // Every reachable place can be left: even the deepest one can be closed.
  const auto grammar = Of(R"({"type": "object", "required": ["a", "b"], "properties": {
      "a": {"type": "array", "items": {"$ref": "#"}}, "b": {"type": "string", "minLength": 1}}})");
  const auto at = grammar->NewConstraint();
  std::string text;
  const auto put = [&](std::string_view bytes) {
    for (const char c : bytes) {
      if (!MaskAllows(at->Mask(), static_cast<uint8_t>(c))) return false;
      at->Accept(static_cast<uint8_t>(c));
    }
    return true;
  };
  int depth = 1;
  ASSERT_TRUE(put("{\"a\":["));
  while (MaskAllows(at->Mask(), '{')) {
    ASSERT_TRUE(put("{\"a\":["));
    ASSERT_LT(++depth, 1000);
  }
  EXPECT_GT(depth, 30);
  for (; depth > 0; --depth)
    ASSERT_TRUE(put(depth > 1 ? "],\"b\":\"x\"}" : "],\"b\":\"\xC3\xA9\"}"));
  EXPECT_TRUE(at->Finished());
}

TEST(Grammar, AmbiguityHasABound) {
  // Two alternatives at every level: 2^depth readings of a text.
  const auto grammar = Of(R"({"anyOf": [
      {"type": "array", "items": {"$ref": "#"}}, {"type": "array", "items": {"$ref": "#"}, "minItems": 1},
      {"type": "array", "prefixItems": [{"$ref": "#"}], "items": false}, {"type": "null"}]})");
  std::string text = "null";
  for (int i = 0; i < 25; ++i) text = "[" + text + "]";
  EXPECT_TRUE(Accepts(*grammar, text));
}

TEST(Grammar, FramesMayRepeat) {
  const Json number = {{"type", "integer"}};
  Frames frames;
  frames.any = {{"<a>", number, "</a>"}, {"<b>", {{"const", "x"}}, "</b>"}};
  const auto one = Grammar::OfFrames(frames, ByteVocabulary());
  frames.separator = "\n";
  const auto some = Grammar::OfFrames(frames, ByteVocabulary());
  EXPECT_TRUE(Accepts(*one, "<a>12</a>"));
  EXPECT_FALSE(Accepts(*one, "<a>12</a>\n<a>1</a>"));
  EXPECT_TRUE(Accepts(*some, "<a>12</a>\n<b>\"x\"</b>\n<a>1</a>"));
  EXPECT_FALSE(Accepts(*some, "<a>12</a>\n"));
  EXPECT_FALSE(Accepts(*some, ""));
  // Around all of them, with nothing in between.
  frames.separator = "";
  frames.before = "<c>";
  frames.after = "</c>";
  const auto around = Grammar::OfFrames(frames, ByteVocabulary());
  EXPECT_TRUE(Accepts(*around, "<c><a>12</a></c>"));
  EXPECT_TRUE(Accepts(*around, "<c><a>12</a><b>\"x\"</b><a>1</a></c>"));
  for (const char* text :
       {"<c></c>", "<a>12</a>", "<c><a>12</a>", "<c><a>1</a></c><c><a>1</a></c>"}) {
    EXPECT_FALSE(Accepts(*around, text)) << text;
  }
}

TEST(Grammar, WhatIsNotSupportedIsNamed) {
  ExpectRefused(R"({"properties": {"a/b": {"not": {}}}})", "#/properties/a~1b", "'not'");
  ExpectRefused(R"({"type": "array", "items": {"uniqueItems": true, "type": "array"}})", "#/items",
                "'uniqueItems'");
  ExpectRefused(R"({"type": "strin"})", "#/type", "strin");
  ExpectRefused(R"({"type": "integer", "multipleOf": 3})", "#/multipleOf", "3");
  ExpectRefused(R"({"oneOf": [{"type": "integer"}, {"type": "number"}]})", "#/oneOf", "0 and 1");
  ExpectRefused(R"({"$ref": "#/$defs/a"})", "#/$ref", "#/$defs/a");
  ExpectRefused(R"({"$ref": "other.json"})", "#/$ref", "other.json");
  ExpectRefused(R"j({"pattern": "(?=a)"})j", "#/pattern", "look-around");
  ExpectRefused(R"j({"pattern": "(a"})j", "#/pattern", "no regular expression");
  ExpectRefused(R"j({"pattern": "^a\\b"})j", "#/pattern", "word boundaries");
  ExpectRefused(R"({"enum": [1, 2], "minimum": 2})", "#", "'minimum'");
  ExpectRefused(R"({"patternProperties": {"a": {}}})", "#", "'patternProperties'");
  ExpectRefused(R"({"minItems": -1})", "#/minItems", "-1");
  ExpectRefused(R"({"minLength": 1e9})", "#/minLength", "too large");
  ExpectRefused(R"({"type": "array", "maxItems": 150000, "items": {"maxLength": 150000}})", "",
                "too large");
  ExpectRefused(R"([1])", "#", "object");
  ExpectRefused(R"({"$ref": "#"})", "#", "circular");
  ExpectRefused(R"({"type": "object", "required": ["a"], "properties": {"a": {"$ref": "#"}}})", "",
                "no value of finite size");
  ExpectRefused(R"({"type": "integer", "minimum": 3, "maximum": 2})", "", "no value");
  ExpectRefused(R"({"enum": ["a", "b"], "const": "c"})", "", "no value");
  ExpectRefused(R"({"allOf": [{"$ref": "#"}, {"type": "string"}]})", "#", "circular");
}

TEST(Grammar, NumbersKeepTheirBounds) {
  auto random = TestRandom(3);
  for (int i = 0; i < 60; ++i) {
    const auto digits = static_cast<int>(random() % 4);
    const int64_t scale = digits == 0 ? 30 : digits == 1 ? 300 : digits == 2 ? 3000 : 12000;
    const auto pick = [&] { return static_cast<int64_t>(random() % (2 * scale)) - scale; };
    int64_t low = pick(), high = pick();
    if (low > high) std::swap(low, high);
    if (low == high) continue;
    const bool out = random() % 2 == 0;
    const auto grammar = Grammar::OfSchema(
        {{"type", "integer"}, {out ? "exclusiveMinimum" : "minimum", low}, {"maximum", high}},
        ByteVocabulary());
    for (int64_t value = -scale - 20; value < scale + 20; value += 1 + random() % 7) {
      const bool inside = value <= high && (out ? value > low : value >= low);
      ASSERT_EQ(Accepts(*grammar, std::to_string(value)), inside)
          << value << " in " << low << ".." << high;
    }
    // The same in hundredths, with decimal points.
    const auto text = [](int64_t hundredths) {
      return fmt::format("{}{}.{:02}", hundredths < 0 ? "-" : "", std::abs(hundredths) / 100,
                         std::abs(hundredths) % 100);
    };
    const auto numbers =
        Grammar::OfSchema({{"type", "number"},
                           {out ? "exclusiveMinimum" : "minimum", Json::parse(text(low))},
                           {"maximum", Json::parse(text(high))}},
                          ByteVocabulary());
    for (int64_t value = -scale - 20; value < scale + 20; value += 1 + random() % 7) {
      if (value == 0) continue;
      const bool inside = value <= high && (out ? value > low : value >= low);
      ASSERT_EQ(Accepts(*numbers, text(value)), inside)
          << text(value) << " in " << text(low) << ".." << text(high);
    }
  }
}

}  // namespace
}  // namespace litecache::grammar
