// Invariants of every task when generated separately, for random seeds and odd lengths.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <regex>
#include <set>

#include "base/error.h"
#include "eval/metrics.h"
#include "eval/ruler/ruler.h"
#include "eval/ruler_testing.h"
#include "test_seed.h"

namespace litecache::eval {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kLengths[] = {1531, 4093, 8209};

// The words and other strings of a sample, which the two splits must not share.
std::set<std::string> DrawnStrings(const RulerSample& sample) {
  std::set<std::string> drawn(sample.outputs.begin(), sample.outputs.end());
  static const std::regex needle("for ([a-z0-9-]+) is: ([a-z0-9-]+)\\.");
  for (std::sregex_iterator it(sample.input.begin(), sample.input.end(), needle), end; it != end;
       ++it) {
    drawn.insert((*it)[1]);
    drawn.insert((*it)[2]);
  }
  return drawn;
}

class EveryTask : public ::testing::TestWithParam<std::string> {
 protected:
  Generator Make(int64_t length, Split split = Split::kTest) const {
    return Generator(
        {.task = GetParam(), .length = length, .seed = testing::TestSeed(), .split = split},
        CountPieces);
  }
};

TEST_P(EveryTask, MeetsTheLengthWithinAUnit) {
  // Upper bound on the CountPieces tokens of a haystack unit: a line of noise or of two uuids;
  // three numbered words; the words added by one more step of frequencies.
  const int64_t unit = GetParam() == "fwe" ? 60 : GetParam() == "cwe" ? 36 : 30;
  for (const int64_t length : kLengths) {
    const Generator generator = Make(length);
    for (int i = 0; i < 5; ++i) {
      const RulerSample sample = generator.Make(i);
      EXPECT_EQ(sample.length, CountPieces(sample.input) + sample.max_new_tokens);
      EXPECT_LE(sample.length, length);
      EXPECT_GT(sample.length, length - unit);
    }
  }
}

TEST_P(EveryTask, EndsInTheAnswerPrefixAndHoldsTheAnswers) {
  for (const int64_t length : kLengths) {
    const RulerSample sample = Make(length).Make(3);
    EXPECT_TRUE(sample.input.ends_with(sample.answer_prefix));
    EXPECT_EQ(sample.answer_prefix.front(), ' ');
    EXPECT_EQ(StringMatchAll(sample.input, sample.outputs), 1);
    EXPECT_EQ(sample.metric, "string_match_all");
    EXPECT_EQ(std::set<std::string>(sample.outputs.begin(), sample.outputs.end()).size(),
              sample.outputs.size());
  }
}

TEST_P(EveryTask, NeedlesStandOnceWhereTheyAreSaidToStand) {
  for (const int64_t length : kLengths) {
    for (int i = 0; i < 5; ++i) {
      const RulerSample sample = Make(length).Make(i);
      double last = -1;
      for (const Needle& needle : sample.needles) {
        const std::string text = sample.input.substr(
            static_cast<size_t>(needle.begin), static_cast<size_t>(needle.end - needle.begin));
        EXPECT_EQ(CountOf(sample.input, text), 1) << text;
        EXPECT_TRUE(text.starts_with("One of the special magic ") || text.starts_with("VAR "));
        EXPECT_GT(needle.depth, last);
        EXPECT_LE(needle.depth, 1);
        last = needle.depth;
      }
    }
  }
}

TEST_P(EveryTask, IsAFunctionOfSeedAndIndex) {
  const Generator generator = Make(2053);
  const std::string third = generator.Make(3).input;
  generator.Make(0);
  EXPECT_EQ(generator.Make(3).input, third);
  EXPECT_EQ(Make(2053).Make(3).input, third);
  EXPECT_NE(generator.Make(4).input, third);
  Generator other({.task = GetParam(), .length = 2053, .seed = testing::TestSeed() + 1},
                  CountPieces);
  EXPECT_NE(other.Make(3).input, third);
  EXPECT_NE(other.Make(3).outputs, generator.Make(3).outputs);
}

TEST_P(EveryTask, TrainingAndTestShareNothingDrawn) {
  const Generator train = Make(4093, Split::kTrain);
  const Generator test = Make(4093, Split::kTest);
  std::set<std::string> seen;
  for (int i = 0; i < 10; ++i) seen.merge(DrawnStrings(train.Make(i)));
  for (int i = 0; i < 10; ++i) {
    for (const std::string& text : DrawnStrings(test.Make(i))) EXPECT_EQ(seen.count(text), 0u);
  }
}

TEST_P(EveryTask, ATooShortLengthNamesTheShortest) {
  const std::string message = ErrorOf([&] { Make(50); });
  std::smatch match;
  const std::regex form("--length: " + GetParam() + " needs at least ([0-9]+) tokens, 50 given");
  ASSERT_TRUE(std::regex_match(message, match, form)) << message;
  const int64_t least = std::stoll(match[1]);
  // Samples differ by the lengths of their words; slightly above the minimum, all of them fit.
  const int64_t enough = least + least / 4 + 40;
  EXPECT_LE(Make(enough).Make(7).length, enough);
}

INSTANTIATE_TEST_SUITE_P(Ruler, EveryTask, ::testing::ValuesIn([] {
                           std::vector<std::string> names;
                           for (const TaskSpec& spec : TaskSpecs()) {
                             if (!NeedsQuestions(spec)) names.emplace_back(spec.name);
                           }
                           return names;
                         }()),
                         [](const auto& info) { return info.param; });

RulerSample MakeSample(const std::string& task, int64_t length, int64_t index = 0,
                       std::shared_ptr<const Haystack> haystack = Haystack::Default()) {
  return Generator({.task = task,
                    .length = length,
                    .seed = testing::TestSeed(),
                    .haystack = std::move(haystack)},
                   CountPieces)
      .Make(index);
}

TEST(Ruler, HasThirteenTasks) {
  EXPECT_EQ(TaskNames().size(), 13u);
  EXPECT_THAT(ErrorOf([] { FindTask("niah"); }),
              AllOf(HasSubstr("no task 'niah'"), HasSubstr("niah_single_1, "),
                    HasSubstr(", fwe, qa_1, qa_2")));
}

// Numbers of needles and answers, and their kinds, as in RULER's task table.
TEST(Ruler, NeedleTasksHaveTheirParameters) {
  const std::string words = "[a-z-]+", number = "[0-9]{7}", uuid = "[0-9a-f-]{36}";
  const auto form = [](const std::string& kind, const std::string& key, const std::string& value) {
    return "One of the special magic " + kind + " for " + key + " is: " + value + "\\.";
  };
  const std::map<std::string, std::tuple<size_t, size_t, std::string>> rows = {
      {"niah_single_1", {1, 1, form("numbers", words, number)}},
      {"niah_single_2", {1, 1, form("numbers", words, number)}},
      {"niah_single_3", {1, 1, form("uuids", words, uuid)}},
      {"niah_multikey_1", {4, 1, form("numbers", words, number)}},
      {"niah_multikey_2", {1, 1, form("numbers", words, number)}},
      {"niah_multikey_3", {1, 1, form("uuids", uuid, uuid)}},
      {"niah_multivalue", {4, 4, form("numbers", words, number)}},
      {"niah_multiquery", {4, 4, form("numbers", words, number)}},
  };
  for (const auto& [task, row] : rows) {
    const auto& [needles, outputs, pattern] = row;
    const RulerSample sample = MakeSample(task, 4096, 2);
    EXPECT_EQ(sample.needles.size(), needles) << task;
    EXPECT_EQ(sample.outputs.size(), outputs) << task;
    EXPECT_EQ(sample.max_new_tokens, 128);
    for (const Needle& needle : sample.needles) {
      const std::string text = sample.input.substr(static_cast<size_t>(needle.begin),
                                                   static_cast<size_t>(needle.end - needle.begin));
      EXPECT_TRUE(std::regex_match(text, std::regex(pattern))) << text;
    }
  }
}

// The answers are the values of the requested key in the text.
TEST(Ruler, NeedleAnswersFollowFromTheText) {
  for (const TaskSpec& spec : TaskSpecs()) {
    if (spec.family != Family::kNeedle) continue;
    const RulerSample sample = MakeSample(std::string(spec.name), 3001, 5);
    std::multimap<std::string, std::string> values;
    const std::regex needle("for ([a-z0-9-]+) is: ([a-z0-9-]+)\\.");
    for (std::sregex_iterator it(sample.input.begin(), sample.input.end(), needle), end; it != end;
         ++it) {
      values.emplace((*it)[1], (*it)[2]);
    }
    std::smatch match;
    ASSERT_TRUE(std::regex_search(sample.answer_prefix, match,
                                  std::regex("magic [a-z]+ for (.*) mentioned in")));
    std::string keys = match[1];
    std::multiset<std::string> found;
    for (std::string key : SplitText(keys, ", ")) {
      if (key.starts_with("and ")) key = key.substr(4);
      EXPECT_GT(values.count(key), 0u) << key;
      const auto [begin, end] = values.equal_range(key);
      for (auto it = begin; it != end; ++it) found.insert(it->second);
    }
    EXPECT_EQ(found, std::multiset<std::string>(sample.outputs.begin(), sample.outputs.end()))
        << spec.name;
  }
}

TEST(Ruler, EssayWithoutNeedlesIsTheHaystack) {
  std::string essay;
  for (int i = 0; i < 900; ++i) essay += "Sentence number " + std::to_string(i) + " stands here. ";
  const auto haystack = Haystack::FromText(essay, Haystack::Pieces::kSentences);
  const RulerSample sample = MakeSample("niah_multikey_1", 4096, 1, haystack);
  std::string context = sample.input;
  for (auto it = sample.needles.rbegin(); it != sample.needles.rend(); ++it) {
    // The joint before the needle is removed as well.
    context.erase(static_cast<size_t>(it->begin) - 1, static_cast<size_t>(it->end - it->begin) + 1);
  }
  const size_t begin = context.find('\n') + 1;
  std::string text = context.substr(begin, context.find('\n', begin) - begin);
  if (text.starts_with(' ')) text.erase(0, 1);
  EXPECT_EQ(text, essay.substr(0, text.size()));
  EXPECT_GT(text.size(), 5000u);
}

TEST(Ruler, NeedlesReachAllDepths) {
  const Generator generator({.task = "niah_single_2", .length = 4096, .seed = testing::TestSeed()},
                            CountPieces);
  ExpectAllDepths(generator, 0.9);
}

TEST(Ruler, VariableChainsResolve) {
  for (int i = 0; i < 5; ++i) {
    const RulerSample sample = MakeSample("vt", 4096, i);
    ASSERT_EQ(sample.outputs.size(), 5u);
    ASSERT_EQ(sample.needles.size(), 5u);
    EXPECT_EQ(sample.max_new_tokens, 30);
    EXPECT_TRUE(sample.input.ends_with("they are: "));
    // Interprets the statements after the example.
    const std::string text = sample.input.substr(sample.input.rfind("Memorize and track"));
    std::map<std::string, std::string> value;
    for (const std::string& line : SplitText(text, "\n")) {
      std::smatch match;
      if (std::regex_match(line, match, std::regex("VAR ([A-Z]{5}) = ([0-9]{5})"))) {
        value[match[1]] = match[2];
      } else if (std::regex_match(line, match, std::regex("VAR ([A-Z]{5}) = VAR ([A-Z]{5}) "))) {
        ASSERT_TRUE(value.count(match[2])) << line;
        value[match[1]] = value[match[2]];
      }
    }
    EXPECT_EQ(value.size(), 5u);
    for (const std::string& name : sample.outputs) {
      EXPECT_THAT(sample.answer_prefix, HasSubstr("the value " + value[name] + ","));
    }
    // The example has three-letter names and its solution.
    EXPECT_TRUE(std::regex_search(
        sample.input, std::regex("they are:  [A-Z]{3}( [A-Z]{3}){4}\n\nMemorize and track")));
  }
}

TEST(Ruler, CommonWordsAreTheMostCommon) {
  for (const auto& [length, common, other] :
       {std::tuple<int64_t, int, int>{3000, 6, 1}, {9000, 30, 3}}) {
    const RulerSample sample = MakeSample("cwe", length, 1);
    const std::string text = sample.input.substr(sample.input.rfind("Below is a numbered list"));
    const std::string list = SplitText(text, "\n").at(1);
    std::map<std::string, int> counts;
    const std::vector<std::string> parts = SplitText(list, " ");
    for (size_t i = 0; i + 1 < parts.size(); i += 2) {
      EXPECT_EQ(parts[i], std::to_string(i / 2 + 1) + ".");
      ++counts[parts[i + 1]];
    }
    EXPECT_EQ(sample.outputs.size(), 10u);
    for (const std::string& word : sample.outputs) {
      EXPECT_EQ(counts[word], common);
      counts.erase(word);
    }
    for (const auto& [word, count] : counts) EXPECT_EQ(count, other) << word;
  }
}

TEST(Ruler, CommonWordsSayWhereTheirWordsEnd) {
  EXPECT_THAT(ErrorOf([] { MakeSample("cwe", 4000000); }), HasSubstr("has words for"));
}

TEST(Ruler, FrequentWordsFollowTheZetaDistribution) {
  const RulerSample sample = MakeSample("fwe", 6007, 1);
  const std::string line = SplitText(sample.input, "\n").at(0);
  const std::string list = line.substr(line.find("coded words. ") + 13);
  std::map<std::string, int> counts;
  for (const std::string& word : SplitText(list, " ")) ++counts[word];
  // Rank 1 is the dots; n/k^2 with the same n for the answers at ranks 2 to 4.
  const int dots = counts["..."];
  ASSERT_GT(dots, 100);
  for (size_t i = 0; i < 3; ++i) {
    const double rank = static_cast<double>(i) + 2;
    EXPECT_NEAR(counts[sample.outputs[i]], dots / (rank * rank), 1) << rank;
  }
  int greater = 0;
  for (const auto& [word, count] : counts) greater += count >= counts[sample.outputs[2]];
  EXPECT_EQ(greater, 4);
}

}  // namespace
}  // namespace litecache::eval
