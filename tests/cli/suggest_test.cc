#include "cli/suggest.h"

#include <gtest/gtest.h>

namespace litecache::cli {
namespace {

TEST(EditDistance, CountsEdits) {
  EXPECT_EQ(EditDistance("", ""), 0);
  EXPECT_EQ(EditDistance("", "abc"), 3);
  EXPECT_EQ(EditDistance("kitten", "sitting"), 3);
  EXPECT_EQ(EditDistance("modle", "model"), 1);  // neighbours swapped
  EXPECT_EQ(EditDistance("chat", "chart"), 1);
}

TEST(Nearest, FindsSlips) {
  const std::vector<std::string> commands = {"generate", "chat", "tokenize", "detokenize"};
  EXPECT_EQ(Nearest("genrate", commands), "generate");
  EXPECT_EQ(Nearest("tokenise", commands), "tokenize");
  EXPECT_EQ(Nearest("gen", commands), "generate");  // the beginning of one
  EXPECT_EQ(Nearest("x", commands), "");
  EXPECT_EQ(Nearest("completely-else", commands), "");
}

TEST(Nearest, AmbiguousBeginningsGiveNothing) {
  EXPECT_EQ(Nearest("--pro", {"--prompt-file", "--prompt-tokens-file"}), "");
}

}  // namespace
}  // namespace litecache::cli
