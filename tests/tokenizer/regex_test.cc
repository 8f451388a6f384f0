#include "tokenizer/regex.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/error.h"
#include "tokenizer/pattern.h"

namespace litecache::tokenizer {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<std::string> Matches(std::string_view pattern, std::string_view text) {
  const Regex regex(pattern, "test");
  Regex::Matcher matcher(regex);
  matcher.Start(text);
  std::vector<std::string> matches;
  size_t begin = 0;
  size_t end = 0;
  while (matcher.Next(&begin, &end)) matches.emplace_back(text.substr(begin, end - begin));
  return matches;
}

std::string ErrorOf(std::string_view pattern) {
  try {
    Regex regex(pattern, "here");
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(Regex, MatchesLlama3Words) {
  const std::string_view pattern =
      R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
  EXPECT_THAT(Matches(pattern, "I'LL say  1234 été!\n\n  x"),
              ElementsAre("I", "'LL", " say", " ", " ", "123", "4", " été", "!\n\n", " ", " x"));
}

TEST(Regex, PlusBehindAnIntervalRepeatsIt) {
  EXPECT_THAT(Matches(R"(\d{1,3}+)", "12345"), ElementsAre("12345"));
  EXPECT_THAT(Matches(R"((?:ab){2}?c)", "ababc c"), ElementsAre("ababc", "c"));
  EXPECT_THAT(Matches(R"([ab]{,2})", "aab"), ElementsAre("aa", "b"));
  EXPECT_THAT(Matches(R"(é{2}+)", "éééé"), ElementsAre("éééé"));
}

TEST(Regex, WordsIncludeMarksAndConnectors) {
  EXPECT_THAT(Matches(R"(\w+)", "e\u0301t\u00e9_\u203f1 -"), ElementsAre("e\u0301t\u00e9_\u203f1"));
  EXPECT_THAT(Matches(R"([^\w]+)", "a\u0301, b"), ElementsAre(", "));
  EXPECT_THAT(Matches(R"(\bb)", "a\u0301b b"), ElementsAre("b"));
}

TEST(Regex, KnowsNewerCharactersThanPcre2) {
  EXPECT_THAT(Matches(R"(\p{Lu}+)", "A\u1C89\uA7CB"), ElementsAre("A\u1C89\uA7CB"));
  EXPECT_THAT(Matches(R"(\p{Lo}|\p{Nd})", "\U000323AF \U00010D40"),
              ElementsAre("\U000323AF", "\U00010D40"));
  EXPECT_THAT(Matches(R"(\s)", "\u180E"), IsEmpty());
}

TEST(Regex, LinesAndOptions) {
  EXPECT_THAT(Matches("^.$", "a\nb\ncc"), ElementsAre("a", "b"));
  EXPECT_THAT(Matches("(?m:a.b)|c.", "a\nbc\nc!"), ElementsAre("a\nb", "c!"));
  EXPECT_THAT(Matches(R"(\h+)", "xFf0g"), ElementsAre("Ff0"));
}

TEST(Regex, EmptyMatchesAdvance) {
  EXPECT_THAT(Matches("x*", "axé"), ElementsAre("", "x", ""));
  EXPECT_THAT(Matches("(?=b)", "abb"), ElementsAre("", ""));
}

TEST(Regex, EscapedTextMatchesItself) {
  std::string all;
  for (int c = 1; c < 128; ++c) all += static_cast<char>(c);
  all += "é€😀";
  EXPECT_THAT(Matches(EscapePattern(all), "x" + all + "y"), ElementsAre(all));
}

TEST(Regex, RefusesWhatItCannotTranslate) {
  for (const char* pattern :
       {R"((a)\1)", "[a&&b]",     "[a[bc]]",  "[]a]",    R"(\X)",   R"(\K)",  R"(\G)",
        "(?x) a",   "(?<name>a)", "a(?i)b",   R"([\W])", R"(\p{})", R"(\pL)", R"(\x80)",
        "(?#c)",    "(?(1)a)",    R"(\Qa\E)", R"(\p{L)", "a)",      "[a"}) {
    EXPECT_THAT(ErrorOf(pattern), HasSubstr("here: ")) << pattern;
    EXPECT_THROW(Regex(pattern, "here"), Unsupported) << pattern;
  }
  EXPECT_THROW(Regex(std::string(1 << 17, 'a'), "here"), Unsupported);
}

TEST(Regex, NamesMalformedPatterns) {
  for (const char* pattern : {"(a", "*a", R"(\p{NoSuchScript})", "a{3,2}"}) {
    EXPECT_THROW(Regex(pattern, "here"), FileError) << pattern;
    EXPECT_THAT(ErrorOf(pattern), HasSubstr(pattern));
  }
}

TEST(Regex, GivesUpOnExponentialSearches) {
  EXPECT_THROW(Matches("(?:a|a)*b", std::string(60, 'a') + "cb"), InvalidArgument);
}

TEST(Pattern, PlainStringsAreNoExpressions) {
  EXPECT_EQ(Pattern::FromString(".").ReplaceAll("a.b..", "!"), "a!b!!");
  EXPECT_EQ(Pattern::FromString("aa").ReplaceAll("aaaaa", "b"), "bba");
  EXPECT_EQ(Pattern::FromRegex(Regex("a+", "t")).ReplaceAll("caaatb", "\\1"), "c\\1tb");
}

}  // namespace
}  // namespace litecache::tokenizer
