// Texts that are no JSON: regular expressions, choices, and answers behind thoughts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <random>
#include <regex>
#include <set>

#include "base/work_limit.h"
#include "expect_error.h"
#include "grammar/gbnf.h"
#include "grammar/grammar.h"
#include "grammar/grammar_testing.h"
#include "test_seed.h"
#include "tokenizer/utf8.h"

namespace litecache::grammar {
namespace {

using ::testing::HasSubstr;
using testing::TestRandom;

std::shared_ptr<Grammar> Pattern(std::string_view pattern) {
  return Grammar::OfPattern(pattern, ByteVocabulary());
}

TEST(TextForms, PatternsMatchFromEndToEnd) {
  auto random = TestRandom(51);
  for (const char* pattern : {"a|b+", "^a|b+$", "(ab?c*)+", "[a-c]{2,3}", "a[^b]c?", "\"?a\\\\?",
                              "(a|b|)c", "a{0,2}(b|c)", "\\w-\\d", "a.b"}) {
    const auto grammar = Pattern(pattern);
    const std::regex expected(pattern);
    for (int i = 0; i < 400; ++i) {
      std::string text;
      for (size_t n = random() % 5; n > 0; --n) text += "abc\"\\-1"[random() % 7];
      EXPECT_EQ(Accepts(*grammar, text), std::regex_match(text, expected))
          << pattern << ": " << text;
    }
  }
  // Characters stand as they are, not as in JSON.
  EXPECT_TRUE(Accepts(*Pattern("\"\\n\\\\é.\""), "\"\n\\é\xE2\x82\xAC\""));
  EXPECT_FALSE(Accepts(*Pattern("\\n"), "\\n"));
  EXPECT_THROW(Pattern("a(b"), InvalidArgument);
  EXPECT_THROW(Pattern("(?=a)"), Unsupported);
  EXPECT_THROW(Pattern("(a{10000}){10000}"), Unsupported);
}

// A class of many characters, in the order that takes longest, does not hold up a server.
TEST(TextForms, PatternsAreWorkedOutInBoundedTime) {
  std::string descending = "[";
  for (uint32_t c = 0x9000; c > 0x5000; c -= 2) tokenizer::AppendUtf8(c, &descending);
  descending += ']';
  const WorkLimit limit(std::chrono::seconds(10), [] { return false; });
  Pattern(descending);
  EXPECT_THROW(Pattern(descending + "{5000}"), Unsupported);
}

TEST(TextForms, Choices) {
  const auto grammar = Grammar::OfChoices({"yes", "yesterday", "no", "\"é\n"}, ByteVocabulary());
  for (const char* text : {"yes", "yesterday", "no", "\"é\n"}) {
    EXPECT_TRUE(Accepts(*grammar, text)) << text;
  }
  for (const char* text : {"", "y", "yest", "nope", "Yes"}) {
    EXPECT_FALSE(Accepts(*grammar, text)) << text;
  }
}

TEST(TextForms, AnswersBehindThoughts) {
  const auto answer = Grammar::OfChoices({"yes", "no"}, ByteVocabulary());
  const auto open = Grammar::AfterReasoning(*answer, {.close = "</think>"});
  for (const char* text :
       {"</think>yes", "hm </thin</think>no", "<</think>\n\nno", "é<think></think> yes"}) {
    EXPECT_TRUE(Accepts(*open, text)) << text;
  }
  for (const char* text : {"yes", "hm", "</think>", "</think>maybe", "</think>\n\n\nno"}) {
    EXPECT_FALSE(Accepts(*open, text)) << text;
  }
  const auto maybe = Grammar::AfterReasoning(*answer, {.open = "<think>", .close = "</think>"});
  for (const char* text : {"yes", "<think>hm</think>yes", "<think>\n\n</think>\n\nno"}) {
    EXPECT_TRUE(Accepts(*maybe, text)) << text;
  }
  for (const char* text : {"hm</think>yes", "</think>yes", "<think>yes", "<think></think>"}) {
    EXPECT_FALSE(Accepts(*maybe, text)) << text;
  }
  // A tag that may begin inside of another beginning.
  const auto aab = Grammar::AfterReasoning(*answer, {.close = "aab"});
  EXPECT_TRUE(Accepts(*aab, "aaabyes"));
  EXPECT_TRUE(Accepts(*aab, "abaabno"));
  EXPECT_FALSE(Accepts(*aab, "abno"));
}

TEST(TextForms, ControlTokensAreAllowedWhereAGrammarNamesThem) {
  const std::string control(1, kControl);
  const auto answer = Grammar::OfPattern("[^a]*", ByteVocabulary());
  EXPECT_TRUE(Accepts(*answer, "end"));
  EXPECT_FALSE(Accepts(*answer, control + "end"));
  const auto behind = Grammar::AfterReasoning(
      *answer, {.open = control + "o", .close = control + "c", .answer = control + "f"});
  for (const std::string& text :
       {control + "oabc" + control + "c" + control + "fxyz", control + "f", control + "fxyz",
        control + "o" + control + "c " + control + "f"}) {
    EXPECT_TRUE(Accepts(*behind, text)) << text;
  }
  for (const std::string& text :
       {std::string("xyz"), control + "o" + control + "x" + control + "c" + control + "f",
        control + "oa" + control + "fx", control + "fx" + control + "f"}) {
    EXPECT_FALSE(Accepts(*behind, text)) << text;
  }
}

TEST(TextForms, JsonMayHaveOtherQuotes) {
  const auto of = [](const char* schema, bool control) {
    Frames frames;
    frames.any = {{"f", Json::parse(schema), ";"}};
    frames.form.quotes = {"<q>", control};
    return Grammar::OfFrames(frames, ByteVocabulary());
  };
  const char* schema = R"({"type": "object", "required": ["city"], "properties": {
      "city": {"type": "string", "maxLength": 5}, "days": {"type": "integer"},
      "the tags": {"type": "array", "items": {"enum": ["a", null, ["b", {"c": "<q>"}], {"d e": "f"}]}},
      "code": {"type": "string", "pattern": "^[a-c\"]+$"}, "more": {"type": "object"}}})";
  const auto grammar = of(schema, false);
  const auto accepts = [&](const std::string& text) { return Accepts(*grammar, "f" + text + ";"); };
  for (const char* text :
       {"{city:<q><q>}", "{city:<q>Par\\\"<q>,days:-3}", "{city:<q>\n<q<q>,the tags:[]}",
        "{city:<q>x<q>,the tags:[<q>a<q>,null,{d e:<q>f<q>}],code:<q>a\"b<q>}",
        "{city:<q>x<q>,more:{<q>a:b<q>:[1,{}],<q><q>:true,a_B1:null}}"}) {
    EXPECT_TRUE(accepts(text)) << text;
  }
  for (const char* text :
       {"{}", "{city:\"x\"}", "{\"city\":<q>x<q>}", "{city: <q>x<q>}", "{city:<q>x<q>, days:1}",
        "{city:<q>longer<q>}", "{city:<q>a<q>b<q>}", "{city:<q>x<q>,days:<q>1<q>}",
        "{city:<q>x<q>,the tags:[[<q>b<q>,{c:<q><q><q>}]]}", "{city:<q>x<q>,code:<q>d<q>}",
        "{city:<q>x<q>,more:{a b:1}}", "{city:<q>x<q>,more:{:1}}"}) {
    EXPECT_FALSE(accepts(text)) << text;
  }
  // As a control token, which no text of the same letters replaces.
  const auto control = of(schema, true);
  EXPECT_TRUE(Accepts(*control, "f{city:\xFF<q>ab\xFF<q>,days:1};"));
  EXPECT_FALSE(Accepts(*control, "f{city:<q>ab<q>};"));
  EXPECT_FALSE(Accepts(*control, "f{city:\xFF<q>a<q>\xFF<q>};"));
  for (const char* name : {"", "a:b", " a", "a,", "{", "a\"", "<a"}) {
    EXPECT_ERROR(of(Json{{"type", "object"}, {"properties", {{name, true}}}}.dump().c_str(), false),
                 Unsupported, "without quotes");
  }
  // Names that are not known are in quotes, and no known one is among them.
  const auto open = of(R"({"type": "object", "properties": {"a": {"type": "null"}},
                           "additionalProperties": {"type": "integer"}})",
                       false);
  EXPECT_TRUE(Accepts(*open, "f{a:null,<q>b<q>:1,aa:2};"));
  EXPECT_FALSE(Accepts(*open, "f{<q>a<q>:1};"));
  EXPECT_FALSE(Accepts(*open, "f{a:1};"));
}

TEST(TextForms, ArgumentsMayHaveKeywords) {
  const auto of = [](const char* schema) {
    Frames frames;
    frames.any = {{"f", Json::parse(schema), ""}, {"ping", true, ""}};
    frames.before = "<";
    frames.after = ">";
    frames.separator = "\n";
    frames.form.keywords = true;
    return Grammar::OfFrames(frames, ByteVocabulary());
  };
  const auto grammar = of(R"({"type": "object", "required": ["b"], "additionalProperties": true,
      "properties": {"a": {"type": "integer"}, "b": {"type": "string"}, "c_1": {"type": "object"}}})");
  for (const char* text : {"<f(b=\"x)\")>", "<f(a=1, b=\"\\n\", c_1={\"x\": [1]})>",
                           "<f(a=1,b=\"\")\nping()\nf(b=\"\")>"}) {
    EXPECT_TRUE(Accepts(*grammar, text)) << text;
  }
  for (const char* text : {"<f()>", "<f(a=1)>", "<f(b='x')>", "<f(\"b\"=\"x\")>", "<f(b:\"x\")>",
                           "<f(b=\"x\", d=1)>", "<ping(a=1)>", "<f(b=\"x\"),ping()>", "<>"}) {
    EXPECT_FALSE(Accepts(*grammar, text)) << text;
  }
  EXPECT_ERROR(of(R"({"type": "object", "properties": {"a b": true}})"), Unsupported,
               "cannot be that of an argument");
  EXPECT_ERROR(of(R"({"enum": [{}]})"), Unsupported, "not supported for these arguments");
}

}  // namespace
}  // namespace litecache::grammar
