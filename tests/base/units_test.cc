#include "base/units.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"

namespace litecache {
namespace {

TEST(ParseBytes, UnitsAndErrors) {
  EXPECT_EQ(ParseBytes("4096", "--memory"), 4096u);
  EXPECT_EQ(ParseBytes("48GiB", "--memory"), 48ull << 30);
  EXPECT_EQ(ParseBytes("1.5 gib", "--memory"), 3ull << 29);
  EXPECT_EQ(ParseBytes("2GB", "--memory"), 2000000000u);
  EXPECT_EQ(ParseBytes("512M", "--memory"), 512ull << 20);
  for (const char* bad : {"", "GiB", "-1GiB", "1 parsec", "nan", "inf", "1e300", "12XB"}) {
    try {
      ParseBytes(bad, "--memory");
      ADD_FAILURE() << bad << " was accepted";
    } catch (const InvalidArgument& error) {
      EXPECT_THAT(error.what(), ::testing::HasSubstr("--memory")) << bad;
    }
  }
}

TEST(ParseTokens, UnitsAndErrors) {
  EXPECT_EQ(ParseTokens("16k", "--length"), 16384);
  EXPECT_EQ(ParseTokens("1m", "--length"), 1048576);
  EXPECT_EQ(ParseTokens("12000", "--length"), 12000);
  EXPECT_EQ(ParseTokens("0.5k", "--length"), 512);
  EXPECT_THROW(ParseTokens("0.3", "--length"), InvalidArgument);
  EXPECT_THROW(ParseTokens("16q", "--length"), InvalidArgument);
  EXPECT_THROW(ParseTokens("-5", "--length"), InvalidArgument);
}

TEST(ParseShareOrTokens, SharesRoundUp) {
  EXPECT_EQ(ParseShareOrTokens("10%", 1001, "--kv-budget"), 101);
  EXPECT_EQ(ParseShareOrTokens("100%", 7, "--kv-budget"), 7);
  EXPECT_EQ(ParseShareOrTokens("4k", 7, "--kv-budget"), 4096);
  EXPECT_THROW(ParseShareOrTokens("101%", 7, "--kv-budget"), InvalidArgument);
  EXPECT_THROW(ParseShareOrTokens("%", 7, "--kv-budget"), InvalidArgument);
}

TEST(Format, ThreeDigits) {
  EXPECT_EQ(FormatBytes(0), "0 B");
  EXPECT_EQ(FormatBytes(1536), "1.50 KiB");
  EXPECT_EQ(FormatBytes(16ull << 30), "16.0 GiB");
  EXPECT_EQ(FormatSeconds(0.00153), "1.53 ms");
  EXPECT_EQ(FormatSeconds(42), "42.0 s");
  EXPECT_EQ(FormatSeconds(61), "1m01s");
  EXPECT_EQ(FormatSeconds(7384), "2h03m");
}

}  // namespace
}  // namespace litecache
