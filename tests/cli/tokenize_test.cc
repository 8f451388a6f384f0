#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "cli/fixture_model.h"
#include "cli/program.h"
#include "test_seed.h"

namespace litecache::testing {
namespace {

using ::testing::HasSubstr;

ProgramResult Tokenize(const std::string& text, std::vector<std::string> more = {}) {
  more.insert(more.begin(), {"tokenize", "--model", SharedModel().path()});
  return RunProgram(more, {.input = text});
}

ProgramResult Detokenize(const std::string& ids, std::vector<std::string> more = {}) {
  more.insert(more.begin(), {"detokenize", "--model", SharedModel().path()});
  return RunProgram(more, {.input = ids});
}

// Ids by hand: <s> 1, "the" 173, " the" 175, "\n" 7.
TEST(Tokenize, PrintsIds) {
  EXPECT_EQ(Tokenize("the the").out, "1 173 175\n");
  EXPECT_EQ(Tokenize("the the\n").out, "1 173 175 7\n");
  EXPECT_EQ(Tokenize("the the", {"--json"}).out, "{\"ids\":[1,173,175]}\n");
  EXPECT_EQ(Tokenize("the the", {"--no-special", "--json"}).out, "{\"ids\":[173,175]}\n");
  EXPECT_EQ(Tokenize("", {"--no-special", "--json"}).out, "{\"ids\":[]}\n");
  EXPECT_EQ(RunProgram({"tokenize", "--model", SharedModel().path(), "the the"}).out,
            "1 173 175\n");
}

TEST(Tokenize, SpecialTokensInTheText) {
  EXPECT_EQ(Tokenize("<|user|>the").out, "1 3 173\n");
  EXPECT_THAT(Tokenize("<|user|>the", {"--plain"}).out, ::testing::Not(HasSubstr(" 3 ")));
}

TEST(Tokenize, LinesAreTextsOfTheirOwn) {
  EXPECT_EQ(Tokenize("the\nthe the\n\nthe", {"--lines", "--no-special"}).out,
            "173\n173 175\n\n173\n");
}

TEST(Tokenize, InvalidUtf8IsReadAsReplacement) {
  const auto broken = Tokenize("a\xff\xc3z");
  EXPECT_EQ(broken.exit_code, 0) << broken.err;
  EXPECT_EQ(broken.out, Tokenize("a\uFFFD\uFFFDz").out);
}

TEST(Tokenize, ErrorsNameTheFix) {
  const auto two = RunProgram({"tokenize", "--model", SharedModel().path(), "a", "b"});
  EXPECT_EQ(two.exit_code, 2);
  EXPECT_THAT(two.err, HasSubstr("quote"));
  const auto none = RunProgram({"tokenize", "--model", FixtureDirectory("llama").string(), "a"});
  EXPECT_EQ(none.exit_code, 1);
  EXPECT_THAT(none.err, HasSubstr("tokenizer.json"));
}

TEST(Detokenize, GivesTheTextBack) {
  auto random = TestRandom(1);
  std::string text;
  for (int i = 0; i < 2000; ++i) text += static_cast<char>(' ' + random() % 95);
  const auto ids = Tokenize(text, {"--no-special", "--plain"});
  EXPECT_EQ(Detokenize(ids.out).out, text);
  const auto json = Tokenize(text, {"--no-special", "--plain", "--json"});
  EXPECT_EQ(Detokenize(json.out).out, text);
  EXPECT_EQ(nlohmann::json::parse(Detokenize(json.out, {"--json"}).out)["text"], text);
}

TEST(Detokenize, SpecialTokens) {
  EXPECT_EQ(Detokenize("1 173 2").out, "<s>the</s>");
  EXPECT_EQ(Detokenize("1 173 2", {"--no-special"}).out, "the");
  EXPECT_EQ(RunProgram({"detokenize", "--model", SharedModel().path(), "173", "175"}).out,
            "the the");
}

TEST(Detokenize, ErrorsNameTheItem) {
  const auto word = Detokenize("173 x");
  EXPECT_EQ(word.exit_code, 2);
  EXPECT_THAT(word.err, HasSubstr("item 2"));
  const auto range = Detokenize("173 9999");
  EXPECT_EQ(range.exit_code, 2);
  EXPECT_THAT(range.err, HasSubstr("9999"));
  EXPECT_EQ(Detokenize("-5").exit_code, 2);
}

}  // namespace
}  // namespace litecache::testing
