#include "cli/prompts.h"

#include <gtest/gtest.h>

#include "expect_error.h"
#include "temporary_directory.h"

namespace litecache::cli {
namespace {

TEST(Beginning, IsOneShortLine) {
  EXPECT_EQ(Beginning("short", 10), "short");
  EXPECT_EQ(Beginning("short\n", 10), "short");
  EXPECT_EQ(Beginning("two\nlines", 10), "two...");
  EXPECT_EQ(Beginning("0123456789", 10), "0123456789");
  EXPECT_EQ(Beginning("0123456789a", 10), "0123456789...");
  EXPECT_EQ(Beginning("a\tb\x1b[31m", 10), "a b [31m");
}

TEST(Beginning, CutsBetweenCharacters) {
  EXPECT_EQ(Beginning("äöüß", 2), "äö...");
  EXPECT_EQ(Beginning("\xff\xfe!", 10), "\uFFFD\uFFFD!");
}

TEST(CollectPrompts, KeepsOrderAndBytes) {
  const litecache::testing::TemporaryDirectory directory;
  const auto text = directory.Write("p.txt", "a file\n\n");
  const auto ids = directory.Write("ids.txt", "5 6\n7\n");
  const auto prompts = CollectPrompts({"one, [two]", ""}, {text.string()}, {ids.string()});
  ASSERT_EQ(prompts.size(), 4u);
  EXPECT_EQ(prompts[0].text, "one, [two]");
  EXPECT_EQ(prompts[1].text, "");
  EXPECT_EQ(prompts[2].text, "a file\n\n");
  EXPECT_TRUE(prompts[3].is_ids);
  EXPECT_EQ(prompts[3].ids, (std::vector<int32_t>{5, 6, 7}));
  EXPECT_ERROR(CollectPrompts({}, {"/nowhere/p.txt"}, {}), FileError, "/nowhere/p.txt");
}

}  // namespace
}  // namespace litecache::cli
