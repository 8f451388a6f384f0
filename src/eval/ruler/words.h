// The words, numbers and identifiers that tasks draw from, split into a training and a test half.
#pragma once

#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "eval/ruler/random.h"

namespace litecache::eval {

enum class Split { kTrain, kTest };

std::string_view SplitName(Split split);
// "train" or "test"; throws InvalidArgument otherwise.
Split ParseSplit(std::string_view name);

// The half that a string belongs to: a bit of its hash, so that the halves are disjoint.
inline Split SplitOf(std::string_view text) {
  return HashText(text) & 1 ? Split::kTest : Split::kTrain;
}

struct WordLists {
  std::vector<std::string_view> adjectives;
  std::vector<std::string_view> nouns;
  std::vector<std::string_view> common;   // nouns, adjectives and verbs, sorted, distinct
  std::vector<std::string_view> english;  // `common` plus a larger list of English words
};

// The split's half of the built-in lists.
const WordLists& WordsOf(Split split);

// The built-in default haystack: Python modules (data/haystack).
std::string_view DefaultHaystackText();

// The kinds of strings used as keys and values.
enum class Vocabulary { kNumbers, kWords, kUuids };

// "numbers", "words" or "uuids", as spelled in RULER's templates.
std::string_view VocabularyName(Vocabulary vocabulary);

// Draws distinct strings of one split.
class Drawer {
 public:
  Drawer(Split split, uint64_t seed) : split_(split), random_(seed) {}

  // Seven digits, "adjective-noun", or a version 4 UUID.
  std::string Draw(Vocabulary vocabulary);
  // Draws `length` letters from `alphabet`.
  std::string Letters(std::string_view alphabet, int length);
  // Draws a number from [low, high), in digits.
  std::string Number(int64_t low, int64_t high);

 private:
  template <typename Make>
  std::string Fresh(Make make);

  Split split_;
  Random random_;
  std::unordered_set<std::string> used_;
};

}  // namespace litecache::eval
