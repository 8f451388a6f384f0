#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "eval/ruler/haystack.h"
#include "eval/ruler_testing.h"

namespace litecache::eval {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

class HaystackFiles : public ::testing::Test {
 protected:
  void SetUp() override {
    directory_ = fs::temp_directory_path() /
                 (std::string("litecache_haystack_") +
                  ::testing::UnitTest::GetInstance()->current_test_info()->name() +
                  std::to_string(::getpid()));
    fs::create_directories(directory_);
  }
  void TearDown() override { fs::remove_all(directory_); }
  std::string Write(const std::string& name, const std::string& text) {
    const fs::path path = directory_ / name;
    fs::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << text;
    return path.string();
  }
  fs::path directory_;
};

TEST(Haystack, SentencesCollapseSpacesAndKeepAbbreviationsTogether) {
  const auto haystack = Haystack::FromText(
      "  One two.\n\n\tThree \u00a0four? \"Five.\" Then Mr. Six met J. Smith, e.g. here. End",
      Haystack::Pieces::kSentences);
  EXPECT_THAT(haystack->Window(haystack->words()),
              ElementsAre("One two.", "Three four?", "\"Five.\"",
                          "Then Mr. Six met J. Smith, e.g. here.", "End"));
  EXPECT_EQ(haystack->joint(), ' ');
}

TEST(Haystack, LinesStayAsTheyAre) {
  const std::string text = "\n\ndef f(a,\n      b):\n\n    return  a\n\tx\n";
  const auto haystack = Haystack::FromText(text, Haystack::Pieces::kLines);
  EXPECT_EQ(haystack->words(), 6);
  EXPECT_THAT(haystack->Window(6),
              ElementsAre("\n\ndef f(a,", "      b):", "\n    return  a", "\tx"));
  // Joined, the pieces give the text back, except for white space at its end.
  std::string joined;
  for (const std::string_view piece : haystack->Window(6)) {
    if (!joined.empty()) joined += haystack->joint();
    joined += piece;
  }
  EXPECT_EQ(joined + "\n", text);
}

TEST(Haystack, WindowsCountWordsAndStartOver) {
  const auto haystack = Haystack::FromText("a b\nc d e\nf", Haystack::Pieces::kLines);
  EXPECT_THAT(haystack->Window(3), ElementsAre("a b", "c"));
  EXPECT_THAT(haystack->Window(8), ElementsAre("a b", "c d e", "f", "a b"));
  EXPECT_THAT(haystack->Window(5, 2), ElementsAre("f", "a b", "c d"));
  EXPECT_TRUE(haystack->Window(0).empty());
}

TEST(Haystack, EmptyOrBrokenTextIsRefused) {
  EXPECT_THAT(ErrorOf([] { Haystack::FromText(" \n ", Haystack::Pieces::kLines, "--haystack"); }),
              HasSubstr("--haystack: holds no words"));
  EXPECT_THAT(ErrorOf([] { Haystack::FromText("a\xff", Haystack::Pieces::kLines); }),
              HasSubstr("not UTF-8"));
}

TEST(Haystack, TheBuiltInOneFillsLongContexts) {
  const auto haystack = Haystack::Default();
  EXPECT_GT(haystack->bytes(), 500000);
  EXPECT_LT(haystack->bytes(), 600 * 1024);
  EXPECT_GT(haystack->pieces(), 10000);
}

TEST_F(HaystackFiles, JsonGivesItsTextAsSentences) {
  const auto haystack =
      Haystack::FromPath(Write("essays.json", R"({"text": "One two. Three\nfour."})"));
  EXPECT_THAT(haystack->Window(4), ElementsAre("One two.", "Three four."));
  EXPECT_THAT(ErrorOf([&] { Haystack::FromPath(Write("a.json", "[1]")); }), HasSubstr("\"text\""));
  EXPECT_THAT(ErrorOf([&] { Haystack::FromPath(Write("b.json", "{\"text\": ")); }),
              HasSubstr("b.json"));
}

TEST_F(HaystackFiles, PiecesFollowTheNameOrTheOption) {
  const std::string prose = Write("a.txt", "One. Two\nThree");
  EXPECT_THAT(Haystack::FromPath(prose)->Window(3), ElementsAre("One.", "Two Three"));
  EXPECT_THAT(Haystack::FromPath(prose, "lines")->Window(3), ElementsAre("One. Two", "Three"));
  EXPECT_THAT(Haystack::FromPath(Write("a.py", "One. Two\nThree"))->Window(3),
              ElementsAre("One. Two", "Three"));
  EXPECT_THAT(ErrorOf([&] { Haystack::FromPath(prose, "words"); }), HasSubstr("'words'"));
}

TEST_F(HaystackFiles, DirectoriesJoinTheirTextFilesInOrder) {
  Write("b/two.py", "two\n");
  Write("a/one.py", "one");
  Write("c.bin", std::string("x\0y", 3));
  Write("d.txt", "\xff\xfe");
  EXPECT_THAT(Haystack::FromPath(directory_.string())->Window(2), ElementsAre("one", "two"));
}

TEST_F(HaystackFiles, MissingFilesAreNamed) {
  EXPECT_THAT(ErrorOf([&] { Haystack::FromPath("/nonexistent/essays.txt"); }),
              HasSubstr("/nonexistent/essays.txt"));
  EXPECT_THAT(ErrorOf([&] { Haystack::FromPath(Write("empty.txt", "")); }),
              HasSubstr("empty.txt: holds no words"));
}

}  // namespace
}  // namespace litecache::eval
