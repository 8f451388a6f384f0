#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "base/error.h"
#include "eval/ruler/run.h"
#include "eval/ruler/tokens.h"
#include "eval/ruler_testing.h"
#include "test_seed.h"

namespace litecache::eval {
namespace {

using ::testing::HasSubstr;

std::string Generate(std::vector<std::string> tasks, int64_t start, int64_t count, int threads) {
  std::ostringstream out;
  GenerateOptions options;
  options.tasks = std::move(tasks);
  options.length = 2048;
  options.start = start;
  options.count = count;
  options.seed = testing::TestSeed();
  options.threads = threads;
  RunGenerate(options, CountPieces, out);
  return out.str();
}

TEST(Run, ThreadsAndResumingGiveTheSameLines) {
  const std::string all = Generate({"niah_multikey_2"}, 0, 23, 1);
  EXPECT_EQ(Generate({"niah_multikey_2"}, 0, 23, 5), all);
  EXPECT_EQ(Generate({"niah_multikey_2"}, 0, 9, 3) + Generate({"niah_multikey_2"}, 9, 14, 2), all);
}

TEST(Run, LinesHaveTheirFields) {
  std::istringstream lines(Generate({"all"}, 4, 2, 2));
  std::vector<std::string> seen;
  for (std::string line; std::getline(lines, line);) {
    const auto json = nlohmann::json::parse(line);
    seen.push_back(json.at("task"));
    EXPECT_EQ(json.at("index"), seen.size() % 2 == 1 ? 4 : 5);
    EXPECT_EQ(json.at("seed"), testing::TestSeed());
    EXPECT_EQ(json.at("split"), "test");
    EXPECT_EQ(json.at("metric"), "string_match_all");
    const std::string input = json.at("input");
    EXPECT_EQ(json.at("length"), CountPieces(input) + json.at("max_new_tokens").get<int64_t>());
    EXPECT_TRUE(input.ends_with(json.at("answer_prefix").get<std::string>()));
    EXPECT_GE(json.at("outputs").size(), 1u);
    EXPECT_TRUE(json.at("depths").is_array());
  }
  EXPECT_EQ(seen.size(), 22u);
  EXPECT_EQ(seen.front(), "niah_single_1");
  EXPECT_EQ(seen.back(), "fwe");
}

TEST(Run, BadOptionsAreNamed) {
  EXPECT_THAT(ErrorOf([] { Generate({"vt"}, 0, 0, 1); }), HasSubstr("--count"));
  EXPECT_THAT(ErrorOf([] { Generate({"vt"}, -1, 1, 1); }), HasSubstr("--start"));
  EXPECT_THAT(ErrorOf([] { Generate({}, 0, 1, 1); }), HasSubstr("--task"));
  EXPECT_THAT(ErrorOf([] { Generate({"vt", "nope"}, 0, 1, 1); }), HasSubstr("no task 'nope'"));
}

TEST(Run, AFailingOutputIsAnError) {
  std::ostringstream out;
  out.setstate(std::ios::badbit);
  GenerateOptions options;
  options.tasks = {"fwe"};
  EXPECT_THAT(ErrorOf([&] { RunGenerate(options, CountPieces, out); }), HasSubstr("disk full"));
}

TEST(Run, EstimatedLengthsAreNearWordCounts) {
  EXPECT_THROW(EstimateTokens(0), InvalidArgument);
  const TokenCounter count = EstimateTokens(4);
  EXPECT_EQ(count(""), 0);
  // the|gras s|is|gree n|.|\n|7|7
  EXPECT_EQ(count("the grass is green.\n77"), 10);
}

}  // namespace
}  // namespace litecache::eval
