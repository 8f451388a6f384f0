#include "eval/longbench/rouge.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/error.h"
#include "eval/python_text.h"

namespace litecache::eval {
namespace {

using Sentence = std::vector<int32_t>;  // word ids
using Words = std::unordered_map<std::string_view, int32_t>;

std::vector<Sentence> Sentences(std::string_view text, Words& numbers) {
  std::vector<Sentence> sentences;
  for (const std::string_view part : SplitAt(text, '.')) {
    if (part.empty()) continue;
    Sentence sentence;
    for (const std::string_view word : SplitWords(part)) {
      sentence.push_back(
          numbers.try_emplace(word, static_cast<int32_t>(numbers.size())).first->second);
    }
    // A sentence of white space only counts as the empty word.
    if (sentence.empty()) {
      sentence.push_back(
          numbers.try_emplace("", static_cast<int32_t>(numbers.size())).first->second);
    }
    sentences.push_back(std::move(sentence));
  }
  return sentences;
}

double DistinctWords(const std::vector<Sentence>& sentences) {
  std::unordered_set<int32_t> words;
  for (const Sentence& sentence : sentences) words.insert(sentence.begin(), sentence.end());
  return static_cast<double>(words.size());
}

// Adds the words of one longest common subsequence. Ties are resolved as in the original: from the
// end, drop the last word of y unless dropping that of x is better.
void AddCommon(const Sentence& x, const Sentence& y, std::unordered_set<int32_t>& words) {
  constexpr uint64_t kMostPairs = uint64_t{1} << 34;
  if (x.size() > kMostPairs / y.size()) {
    throw InvalidArgument("sentences of {} and {} words are too long for ROUGE-L", x.size(),
                          y.size());
  }
  // One bit per pair instead of a table of lengths: whether dropping the last word of x is better.
  std::vector<bool> drop_x(x.size() * y.size());
  std::vector<int32_t> above(y.size() + 1);
  std::vector<int32_t> row(y.size() + 1);
  for (size_t i = 0; i < x.size(); ++i) {
    for (size_t j = 0; j < y.size(); ++j) {
      if (x[i] == y[j]) {
        row[j + 1] = above[j] + 1;
      } else {
        row[j + 1] = std::max(above[j + 1], row[j]);
        drop_x[i * y.size() + j] = above[j + 1] > row[j];
      }
    }
    row.swap(above);
  }
  for (size_t i = x.size(), j = y.size(); i > 0 && j > 0;) {
    if (x[i - 1] == y[j - 1]) {
      words.insert(x[i - 1]);
      --i;
      --j;
    } else if (drop_x[(i - 1) * y.size() + j - 1]) {
      --i;
    } else {
      --j;
    }
  }
}

}  // namespace

double RougeL(std::string_view prediction, std::string_view reference) {
  Words numbers;
  const std::vector<Sentence> predicted = Sentences(prediction, numbers);
  const std::vector<Sentence> expected = Sentences(reference, numbers);
  if (predicted.empty() || expected.empty()) return 0;
  std::unordered_set<int32_t> common;
  for (const Sentence& wanted : expected) {
    for (const Sentence& sentence : predicted) AddCommon(wanted, sentence, common);
  }
  const double recall = static_cast<double>(common.size()) / DistinctWords(expected);
  const double precision = static_cast<double>(common.size()) / DistinctWords(predicted);
  return 2.0 * ((precision * recall) / (precision + recall + 1e-8));
}

}  // namespace litecache::eval
