#include "profile/corpus.h"

#include <gtest/gtest.h>

#include <set>

#include "base/error.h"
#include "expect_error.h"
#include "source_directory.h"
#include "temporary_directory.h"

namespace litecache::profile {
namespace {

using testing::TemporaryDirectory;

std::shared_ptr<const tokenizer::Tokenizer> ByteLevel() {
  return tokenizer::Tokenizer::FromFile(SourceDirectory() /
                                        "tests/tokenizer/fixtures/byte_level.json");
}

TEST(CorpusTest, ReadsFilesLinesAndFolders) {
  const TemporaryDirectory directory;
  const auto file = directory.Write("one.txt", "plain");
  ASSERT_EQ(ReadDocuments(file).size(), 1u);
  EXPECT_EQ(ReadDocuments(file)[0].text, "plain");

  const auto lines = directory.Write(
      "lines.jsonl",
      "{\"text\":\"a\"}\n\n{\"input\":\"Q:\",\"outputs\":[\"x\",\"y\"],\"task\":\"t\"}\r\n");
  const auto parsed = ReadDocuments(lines);
  ASSERT_EQ(parsed.size(), 2u);
  EXPECT_EQ(parsed[0].text, "a");
  EXPECT_EQ(parsed[1].text, "Q: x, y");

  directory.Write("tree/b/2.py", "two");
  directory.Write("tree/b/1.py", "one");
  directory.Write("tree/a.md", "top");
  directory.Write("tree/b/binary", std::string("a\0b", 3));
  directory.Write("tree/b/latin", "\xe9t\xe9");
  const auto folders = ReadDocuments(directory.path() / "tree");
  ASSERT_EQ(folders.size(), 2u);
  EXPECT_EQ(folders[0].text, "top\n");
  EXPECT_EQ(folders[1].text, "one\ntwo\n");
}

TEST(CorpusTest, RefusesWhatIsNoText) {
  const TemporaryDirectory directory;
  EXPECT_ERROR(ReadDocuments(directory.path() / "missing"), FileError, "missing");
  EXPECT_ERROR(ReadDocuments(directory.path()), FileError, "holds no text");
  EXPECT_ERROR(ReadDocuments(directory.Write("e.txt", "")), FileError, "holds no text");
  EXPECT_ERROR(ReadDocuments(directory.Write("l.txt", "\xe9")), FileError, "not UTF-8");
  EXPECT_ERROR(ParseLines("{\"text\":\"a\"}\n{", "f"), FileError, "f:2", "not valid JSON");
  EXPECT_ERROR(ParseLines("{\"task\":1}", "f"), FileError, "f:1", "neither");
  EXPECT_ERROR(ParseLines("{\"text\":3}", "f"), FileError, "f:1", "'text'");
  EXPECT_ERROR(ParseLines("[]", "f"), FileError, "f:1");
  EXPECT_ERROR(ParseLines("{\"input\":\"a\",\"outputs\":[1]}", "f"), FileError, "'outputs'");
}

TEST(CorpusTest, CutsWindows) {
  const auto tokenizer = ByteLevel();
  std::string text;
  for (int i = 0; text.size() < 40000; ++i) text += "number " + std::to_string(i) + " of many\n";
  const std::vector<Document> documents = {{"long", text}, {"short", "a few words here"}};
  const auto windows = CutWindows(documents, *tokenizer, 500, 6, 300);
  ASSERT_EQ(windows.size(), 6u);
  std::set<std::vector<int32_t>> distinct(windows.begin(), windows.end());
  EXPECT_EQ(distinct.size(), 6u);
  for (const auto& window : windows) {
    EXPECT_GE(window.size(), 300u);
    EXPECT_LE(window.size(), 500u);
    EXPECT_NE(text.find(tokenizer->Decode(window, false)), std::string::npos);
  }

  // A document that fits is kept up to its end, which contains its answers.
  const std::string document = text.substr(0, 1500) + "THE ANSWER";
  const auto one = CutWindows({{"d", document}}, *tokenizer, 500, 3, 100);
  ASSERT_EQ(one.size(), 1u);
  EXPECT_TRUE(tokenizer->Decode(one[0], false).ends_with("THE ANSWER"));

  // Short documents are joined, in order.
  std::vector<Document> many;
  for (int i = 0; i < 50; ++i) many.push_back({"d", "Line number " + std::to_string(i) + ".\n"});
  const auto joined = CutWindows(many, *tokenizer, 200, 1, 100);
  ASSERT_EQ(joined.size(), 1u);
  EXPECT_NE(tokenizer->Decode(joined[0], false).find("number 5.\nLine number 6."),
            std::string::npos);

  EXPECT_ERROR(CutWindows(many, *tokenizer, 5000, 2, 4000), InvalidArgument, "4000 tokens",
               "--context");
}

}  // namespace
}  // namespace litecache::profile
