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

}  // namespace
}  // namespace litecache::grammar
