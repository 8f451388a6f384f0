#include "eval/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "eval/ruler_testing.h"

namespace litecache::eval {
namespace {

using ::testing::HasSubstr;

TEST(Metrics, AllIsTheShareContained) {
  EXPECT_EQ(StringMatchAll("are 123, 456 and 789.", {"123", "456", "789"}), 1);
  EXPECT_EQ(StringMatchAll("are 123, 45 and 789.", {"123", "456", "789", "0"}), 0.5);
  EXPECT_EQ(StringMatchAll("", {"123"}), 0);
  // A reference counts once, however often the prediction repeats it.
  EXPECT_EQ(StringMatchAll("1 1 1 1", {"1", "2"}), 0.5);
}

TEST(Metrics, PartIsAnyContained) {
  EXPECT_EQ(StringMatchPart("the answer is paris", {"Paris", "Lutetia"}), 1);
  EXPECT_EQ(StringMatchPart("the answer is london", {"Paris", "Lutetia"}), 0);
}

TEST(Metrics, IgnoreCaseOnBothSides) {
  EXPECT_EQ(StringMatchAll("ABCDE fghij", {"abcde", "FGHIJ"}), 1);
  EXPECT_EQ(StringMatchAll("STRASSE, ÉCOLE", {"école"}), 1);
}

TEST(Metrics, InvalidUtf8IsNoObstacle) {
  EXPECT_EQ(StringMatchAll("\xff\xc3 1234567\xe2\x82", {"1234567"}), 1);
}

TEST(Metrics, ScoreDispatchesByName) {
  EXPECT_EQ(Score("string_match_all", "a", {"a", "b"}), 0.5);
  EXPECT_EQ(Score("string_match_part", "a", {"a", "b"}), 1);
  EXPECT_THAT(ErrorOf([] { Score("rouge", "a", {"a"}); }), HasSubstr("string_match_part"));
  EXPECT_THROW(StringMatchAll("a", {}), InvalidArgument);
}

TEST(Metrics, CleaningTurnsControlCharactersIntoNewlines) {
  EXPECT_EQ(CleanPrediction(" \n a\tb\x01 c \n"), "a\nb\n c");
  EXPECT_EQ(CleanPrediction(" \n "), "");
}

}  // namespace
}  // namespace litecache::eval
