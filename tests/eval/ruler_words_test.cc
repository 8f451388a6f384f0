#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <regex>
#include <set>

#include "eval/ruler/words.h"
#include "eval/ruler_testing.h"
#include "test_seed.h"

namespace litecache::eval {
namespace {

using ::testing::HasSubstr;

TEST(Words, SplitsShareNoWord) {
  const WordLists& train = WordsOf(Split::kTrain);
  const WordLists& test = WordsOf(Split::kTest);
  const std::set<std::string_view> seen(train.english.begin(), train.english.end());
  EXPECT_EQ(seen.size(), train.english.size());
  for (const std::string_view word : test.english) EXPECT_EQ(seen.count(word), 0u) << word;
  // Neither split is too small: each is within a tenth of half of each list.
  const auto balanced = [](size_t a, size_t b) {
    return std::abs(static_cast<double>(a) - static_cast<double>(b)) <
           0.1 * static_cast<double>(a + b);
  };
  EXPECT_TRUE(balanced(train.adjectives.size(), test.adjectives.size()));
  EXPECT_TRUE(balanced(train.nouns.size(), test.nouns.size()));
  EXPECT_TRUE(balanced(train.english.size(), test.english.size()));
  EXPECT_GT(test.english.size(), 10000u);
}

TEST(Words, AreSortedLowerCaseWords) {
  const WordLists& words = WordsOf(Split::kTest);
  EXPECT_TRUE(std::is_sorted(words.english.begin(), words.english.end()));
  EXPECT_TRUE(std::is_sorted(words.common.begin(), words.common.end()));
  for (const std::string_view word : words.english) {
    EXPECT_TRUE(std::all_of(word.begin(), word.end(), [](char c) {
      return (c >= 'a' && c <= 'z') || c == '-';
    })) << word;
  }
}

TEST(Words, DrawsHaveTheirFormsAndNeverRepeat) {
  Drawer drawer(Split::kTest, testing::TestSeed());
  std::set<std::string> seen;
  const std::regex number("[1-9][0-9]{6}");
  const std::regex words("[a-z]+(-[a-z]+)*-[a-z]+(-[a-z]+)*");
  const std::regex uuid("[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}");
  for (int i = 0; i < 3000; ++i) {
    const std::string a = drawer.Draw(Vocabulary::kNumbers);
    const std::string b = drawer.Draw(Vocabulary::kWords);
    const std::string c = drawer.Draw(Vocabulary::kUuids);
    const std::string d = drawer.Letters("ABCDEFGHIJKLMNOPQRSTUVWXYZ", 5);
    EXPECT_TRUE(std::regex_match(a, number)) << a;
    EXPECT_TRUE(std::regex_match(b, words)) << b;
    EXPECT_TRUE(std::regex_match(c, uuid)) << c;
    EXPECT_EQ(d.size(), 5u);
    for (const std::string& text : {a, b, c, d}) EXPECT_TRUE(seen.insert(text).second) << text;
    for (const std::string& text : {a, c, d}) EXPECT_EQ(SplitOf(text), Split::kTest) << text;
  }
}

TEST(Words, SplitsShareNoDraw) {
  std::set<std::string> train;
  Drawer from_train(Split::kTrain, testing::TestSeed());
  Drawer from_test(Split::kTest, testing::TestSeed());
  for (int i = 0; i < 3000; ++i) train.insert(from_train.Letters("ABC", 9));
  for (int i = 0; i < 3000; ++i) EXPECT_EQ(train.count(from_test.Letters("ABC", 9)), 0u);
}

TEST(Words, SplitNames) {
  EXPECT_EQ(ParseSplit("train"), Split::kTrain);
  EXPECT_EQ(SplitName(ParseSplit("test")), "test");
  EXPECT_THAT(ErrorOf([] { ParseSplit("dev"); }), HasSubstr("'dev' is neither train nor test"));
}

TEST(Random, SamplesAreDistinctAndUniform) {
  Random random(testing::TestSeed());
  std::vector<int> hits(7, 0);
  constexpr int kRounds = 7000;
  for (int i = 0; i < kRounds; ++i) {
    const std::vector<int64_t> sample = random.Sample(7, 3);
    EXPECT_EQ(std::set<int64_t>(sample.begin(), sample.end()).size(), 3u);
    for (const int64_t value : sample) ++hits[static_cast<size_t>(value)];
  }
  // Binomial(7000, 3/7): mean 3000, deviation 41; six of them.
  for (const int hit : hits) EXPECT_NEAR(hit, 3000, 250);
  EXPECT_EQ(random.Sample(5, 5).size(), 5u);
}

// Fixed values: splits and seeds of published data sets depend on them.
TEST(Random, IsTheSameOnEveryPlatform) {
  EXPECT_EQ(HashText(""), MixBits(0xcbf29ce484222325ull));
  // SplitMix64 from state 0: the first output of the reference implementation.
  EXPECT_EQ(MixBits(0), 0xe220a8397b1dcdafull);
}

}  // namespace
}  // namespace litecache::eval
