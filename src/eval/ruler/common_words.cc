// Common words extraction: a numbered list in which ten words appear more often than the others.
#include <fmt/core.h>

#include <algorithm>

#include "base/error.h"
#include "eval/ruler/tasks.h"

namespace litecache::eval {
namespace {

constexpr int kCommon = 10;
// Below this length RULER repeats the words less often.
constexpr int64_t kShortLength = 4096;
constexpr std::string_view kAnswerPrefix =
    " Answer: The top 10 words that appear most often in the list are:";

enum : uint64_t { kCweExampleStream, kCweWordStream, kCweOrderStream };

struct Shape {
  int64_t words;
  int common_repeats;
  int other_repeats;
};

std::string NumberedList(const std::vector<std::string_view>& words) {
  std::string text;
  for (size_t i = 0; i < words.size(); ++i) {
    if (i > 0) text += ' ';
    text += fmt::format("{}. {}", i + 1, words[i]);
  }
  return text;
}

class CommonWordsBuilder : public TaskBuilder {
 public:
  explicit CommonWordsBuilder(Split split) : words_(WordsOf(split)) {}

  // A unit is a distinct word.
  int64_t MinSize(const BuildRequest&) const override { return kCommon; }
  int64_t MaxSize(const BuildRequest&) const override {
    return static_cast<int64_t>(words_.english.size());
  }

  Draft Build(const BuildRequest& request) const override {
    const bool brief = request.length < kShortLength;
    const Shape example = brief ? Shape{20, 3, 1} : Shape{40, 10, 3};
    const Shape main = brief ? Shape{request.size, 6, 1} : Shape{request.size, 30, 3};
    Draft draft;
    const auto answer = AppendList(example, DeriveSeed(request.seed, kCweExampleStream), draft);
    draft.text += kAnswerPrefix;
    draft.text += " " + NumberedList(answer) + "\n";
    const auto common = AppendList(main, DeriveSeed(request.seed, kCweWordStream), draft);
    draft.outputs.assign(common.begin(), common.end());
    draft.answer_prefix = kAnswerPrefix;
    draft.text += kAnswerPrefix;
    if (!request.training) return draft;
    const auto middle = static_cast<int64_t>(draft.text.size());
    draft.text += " " + NumberedList(common);
    const auto question = static_cast<int64_t>(kQuestion.size() + kAnswerPrefix.size());
    draft.spans.push_back({middle - question, middle, false});
    draft.spans.push_back({middle, static_cast<int64_t>(draft.text.size()), true});
    return draft;
  }

 private:
  static constexpr std::string_view kQuestion =
      "\nQuestion: What are the 10 most common words in the above list?";

  // Appends preamble, list and question; returns the common words.
  std::vector<std::string_view> AppendList(const Shape& shape, uint64_t seed, Draft& draft) const {
    Random random(seed);
    // Uses the large list only if the small one is not sufficient, as in RULER.
    const auto& from =
        shape.words <= static_cast<int64_t>(words_.common.size()) ? words_.common : words_.english;
    std::vector<std::string_view> list;
    std::vector<std::string_view> common;
    for (const int64_t i : random.Sample(static_cast<int64_t>(from.size()), shape.words)) {
      const std::string_view word = from[static_cast<size_t>(i)];
      const bool is_common = common.size() < kCommon;
      if (is_common) common.push_back(word);
      list.insert(list.end(),
                  static_cast<size_t>(is_common ? shape.common_repeats : shape.other_repeats),
                  word);
    }
    Random order(DeriveSeed(seed, kCweOrderStream));
    order.Shuffle(list);
    draft.text +=
        "Below is a numbered list of words. In these words, some appear more often than others. "
        "Memorize the ones that appear most often.\n";
    draft.text += NumberedList(list);
    draft.text += kQuestion;
    return common;
  }

  const WordLists& words_;
};

}  // namespace

std::unique_ptr<TaskBuilder> MakeCommonWordsBuilder(Split split) {
  return std::make_unique<CommonWordsBuilder>(split);
}

}  // namespace litecache::eval
