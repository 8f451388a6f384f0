#include "base/printable.h"

#include <gtest/gtest.h>

namespace litecache {
namespace {

TEST(Printable, EscapesWhatCommandsATerminal) {
  EXPECT_EQ(Printable("a\x1b[2Jb\r\x7f"), "a\\x1b[2Jb\\x0d\\x7f");
  EXPECT_EQ(Printable(std::string_view("\0", 1)), "\\x00");
  EXPECT_EQ(Printable("a\xC2\x9B"
                      "2J"),
            "a\\x9b2J");  // CSI in one character
  EXPECT_EQ(Printable("one\n\ttwo"), "one\n\ttwo");
  EXPECT_EQ(Printable("\xC3\xA9 \xE6\x97\xA5 \xC2\xA0"), "\xC3\xA9 \xE6\x97\xA5 \xC2\xA0");
}

TEST(Printable, IsCutBetweenCharacters) {
  EXPECT_EQ(Printable("abc", 3), "abc");
  EXPECT_EQ(Printable("abcd", 3), "abc...");
  EXPECT_EQ(Printable("a\xE6\x97\xA5", 3), "a...");
  EXPECT_EQ(Printable("\x80\x80\x80", 2), "...");
}

}  // namespace
}  // namespace litecache
