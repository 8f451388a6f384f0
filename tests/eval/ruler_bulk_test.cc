#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <regex>
#include <set>

#include "base/error.h"
#include "eval/ruler/bulk.h"
#include "eval/ruler_testing.h"
#include "test_seed.h"

namespace litecache::eval {
namespace {

using ::testing::HasSubstr;

BulkOptions Options(const std::string& tasks) {
  BulkOptions options;
  options.tasks = ParseTaskWeights(tasks);
  options.min_length = 1200;
  options.max_length = 5000;
  options.max_questions = 6;
  options.seed = testing::TestSeed();
  return options;
}

TEST(Bulk, WeightsAreRead) {
  const auto weights = ParseTaskWeights("niah_single_1:2.5,vt");
  ASSERT_EQ(weights.size(), 2u);
  EXPECT_EQ(weights[0].second, 2.5);
  EXPECT_EQ(weights[1].first, "vt");
  EXPECT_EQ(weights[1].second, 1);
  EXPECT_EQ(ParseTaskWeights("all").size(), 11u);
  for (const char* bad : {"vt:0", "vt:-1", "vt:x", "vt:nan", "vt:1x", "vt:"}) {
    EXPECT_THAT(ErrorOf([&] { ParseTaskWeights(bad); }), HasSubstr("weight")) << bad;
  }
  EXPECT_THAT(ErrorOf([] { ParseTaskWeights("vt,nope"); }), HasSubstr("no task 'nope'"));
  EXPECT_THAT(ErrorOf([] { ParseTaskWeights(""); }), HasSubstr("empty"));
}

TEST(Bulk, SpansAreQuestionsAndTheirAnswers) {
  const BulkGenerator generator(Options("all"), CountPieces);
  std::set<std::string> tasks;
  size_t most = 0;
  for (int i = 0; i < 150; ++i) {
    const TrainingDocument document = generator.Make(i);
    tasks.insert(document.task);
    ASSERT_FALSE(document.spans.empty());
    ASSERT_EQ(document.spans.size() % 2, 0u);
    most = std::max(most, document.spans.size() / 2);
    EXPECT_EQ(document.length, CountPieces(document.text));
    EXPECT_LE(document.length, 5000);
    EXPECT_GE(document.length, 1200 - 100);
    EXPECT_EQ(document.spans.back().end, static_cast<int64_t>(document.text.size()));
    const auto cut = [&](const Span& span) {
      return document.text.substr(static_cast<size_t>(span.begin),
                                  static_cast<size_t>(span.end - span.begin));
    };
    const std::string body =
        document.text.substr(0, static_cast<size_t>(document.spans.front().begin));
    for (size_t s = 0; s < document.spans.size(); s += 2) {
      const std::string question = cut(document.spans[s]);
      const std::string answer = cut(document.spans[s + 1]);
      EXPECT_FALSE(document.spans[s].is_answer);
      EXPECT_TRUE(document.spans[s + 1].is_answer);
      EXPECT_EQ(document.spans[s].end, document.spans[s + 1].begin);
      if (s > 0) {
        EXPECT_EQ(document.spans[s].begin, document.spans[s - 1].end);
      }
      EXPECT_EQ(question.front(), '\n');
      EXPECT_EQ(answer.front(), ' ');
      // Every value of the answer is in the text before the questions; for single needles, together
      // with the key in the question.
      const std::regex item("[A-Za-z0-9-]{4,}");
      for (std::sregex_iterator it(answer.begin(), answer.end(), item), end; it != end; ++it) {
        EXPECT_GE(CountOf(body, it->str()), 1) << document.task << ": " << answer;
      }
      std::smatch key;
      if (std::regex_search(question, key,
                            std::regex("What is the special magic .* for (.*) men"))) {
        EXPECT_EQ(CountOf(body, key[1].str() + " is:" + answer), 1) << question << answer;
      }
    }
  }
  EXPECT_EQ(tasks.size(), 11u);
  EXPECT_EQ(most, 6u);
}

TEST(Bulk, DrawsFollowTheWeightsAndTheRange) {
  const BulkGenerator generator(Options("niah_single_1:3,niah_multikey_2:1"), CountPieces);
  constexpr int kDocuments = 400;
  int singles = 0, below = 0;
  for (int i = 0; i < kDocuments; ++i) {
    const TrainingDocument document = generator.Make(i);
    singles += document.task == "niah_single_1";
    // The middle of the range on a log scale.
    below += static_cast<double>(document.length) < std::sqrt(1200.0 * 5000.0);
  }
  // The standard deviations are 8.7 and 10; the bounds are six of them.
  EXPECT_NEAR(singles, 300, 52);
  EXPECT_NEAR(below, 200, 65);
}

TEST(Bulk, DocumentsDependOnTheIndexAlone) {
  const BulkGenerator a(Options("all"), CountPieces);
  const BulkGenerator b(Options("all"), CountPieces);
  const std::string tenth = a.Make(10).text;
  b.Make(3);
  EXPECT_EQ(b.Make(10).text, tenth);
  EXPECT_NE(b.Make(11).text, tenth);
}

TEST(Bulk, BadRangesAreRefused) {
  const auto with = [](auto change) {
    BulkOptions options = Options("vt");
    change(options);
    return ErrorOf([&] { BulkGenerator(options, CountPieces); });
  };
  EXPECT_THAT(with([](BulkOptions& o) { o.max_length = 100; }), HasSubstr("no range"));
  EXPECT_THAT(with([](BulkOptions& o) { o.max_questions = 0; }), HasSubstr("--questions"));
  EXPECT_THAT(with([](BulkOptions& o) { o.min_length = 300; }), HasSubstr("vt needs at least"));
}

}  // namespace
}  // namespace litecache::eval
