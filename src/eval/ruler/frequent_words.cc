// Frequent words extraction: coded words with frequencies from a zeta distribution, the top rank
// being dots; the question is for the three words that follow it.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/error.h"
#include "eval/ruler/tasks.h"

namespace litecache::eval {
namespace {

constexpr int kWordLength = 6;
constexpr int kAnswers = 3;
constexpr int kMaxNewTokens = 50;
constexpr std::string_view kLowerCase = "abcdefghijklmnopqrstuvwxyz";
constexpr std::string_view kDots = "...";
// zeta(2): the exponent is 2.
constexpr double kZeta = std::numbers::pi * std::numbers::pi / 6;

enum : uint64_t { kFweWordStream, kFweOrderStream };

class FrequentWordsBuilder : public TaskBuilder {
 public:
  explicit FrequentWordsBuilder(Split split) : split_(split) {}

  // A unit is a word of the text, before the counts of the ranks are rounded down. The minimum:
  // rank 4 appears at least twice and more often than rank 5.
  int64_t MinSize(const BuildRequest&) const override { return 54; }

  Draft Build(const BuildRequest& request) const override {
    const int64_t vocabulary = std::max<int64_t>((request.length - kMaxNewTokens) / 50, 5);
    Drawer drawer(split_, DeriveSeed(request.seed, kFweWordStream));
    std::vector<std::string_view> list;
    std::vector<std::string> words;
    words.emplace_back(kDots);
    for (int64_t rank = 1; rank < vocabulary; ++rank) {
      words.push_back(drawer.Letters(kLowerCase, kWordLength));
    }
    for (int64_t rank = 0; rank < vocabulary; ++rank) {
      const double order = static_cast<double>(rank + 1);
      const double count = static_cast<double>(request.size) / (order * order) / kZeta;
      list.insert(list.end(), static_cast<size_t>(count), words[static_cast<size_t>(rank)]);
    }
    Random random(DeriveSeed(request.seed, kFweOrderStream));
    random.Shuffle(list);
    Draft draft;
    draft.text =
        "Read the following coded text and track the frequency of each coded word. Find the three "
        "most frequently appeared coded words. ";
    for (size_t i = 0; i < list.size(); ++i) {
      if (i > 0) draft.text += ' ';
      draft.text += list[i];
    }
    const auto begin = static_cast<int64_t>(draft.text.size());
    draft.text +=
        "\nQuestion: Do not provide any explanation. Please ignore the dots '....'. What are the "
        "three most frequently appeared words in the above coded text?";
    draft.answer_prefix =
        " Answer: According to the coded text above, the three most frequently appeared words are:";
    draft.text += draft.answer_prefix;
    draft.outputs.assign(words.begin() + 1, words.begin() + 1 + kAnswers);
    if (!request.training) return draft;
    const auto middle = static_cast<int64_t>(draft.text.size());
    draft.text += " " + Enumerate(draft.outputs) + ".";
    draft.spans.push_back({begin, middle, false});
    draft.spans.push_back({middle, static_cast<int64_t>(draft.text.size()), true});
    return draft;
  }

 private:
  Split split_;
};

}  // namespace

std::unique_ptr<TaskBuilder> MakeFrequentWordsBuilder(Split split) {
  return std::make_unique<FrequentWordsBuilder>(split);
}

}  // namespace litecache::eval
