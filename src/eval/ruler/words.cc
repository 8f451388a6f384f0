#include "eval/ruler/words.h"

#include <fmt/core.h>

#include <algorithm>

#include "base/error.h"
#include "eval/ruler/data.h"

namespace litecache::eval {
namespace {

std::vector<std::string_view> LinesOf(std::string_view text, Split split) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    if (!line.empty() && SplitOf(line) == split) lines.push_back(line);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

WordLists Load(Split split) {
  WordLists lists;
  lists.adjectives = LinesOf(data::Adjectives(), split);
  lists.nouns = LinesOf(data::Nouns(), split);
  const auto sort_distinct = [](std::vector<std::string_view>& words) {
    std::sort(words.begin(), words.end());
    words.erase(std::unique(words.begin(), words.end()), words.end());
  };
  const auto append = [](std::vector<std::string_view>& to,
                         const std::vector<std::string_view>& from) {
    to.insert(to.end(), from.begin(), from.end());
  };
  append(lists.common, lists.nouns);
  append(lists.common, lists.adjectives);
  append(lists.common, LinesOf(data::Verbs(), split));
  sort_distinct(lists.common);
  lists.english = lists.common;
  append(lists.english, LinesOf(data::English(), split));
  sort_distinct(lists.english);
  return lists;
}

}  // namespace

std::string_view SplitName(Split split) { return split == Split::kTrain ? "train" : "test"; }

Split ParseSplit(std::string_view name) {
  if (name == "train") return Split::kTrain;
  if (name == "test") return Split::kTest;
  throw InvalidArgument("--split: '{}' is neither train nor test", name);
}

const WordLists& WordsOf(Split split) {
  static const WordLists train = Load(Split::kTrain);
  static const WordLists test = Load(Split::kTest);
  return split == Split::kTrain ? train : test;
}

std::string_view DefaultHaystackText() { return data::Haystack(); }

std::string_view VocabularyName(Vocabulary vocabulary) {
  switch (vocabulary) {
    case Vocabulary::kNumbers:
      return "numbers";
    case Vocabulary::kWords:
      return "words";
    case Vocabulary::kUuids:
      return "uuids";
  }
  return "";
}

template <typename Make>
std::string Drawer::Fresh(Make make) {
  while (true) {
    std::string text = make();
    if (used_.insert(text).second) return text;
  }
}

std::string Drawer::Draw(Vocabulary vocabulary) {
  switch (vocabulary) {
    case Vocabulary::kNumbers:
      return Number(1000000, 10000000);
    case Vocabulary::kWords: {
      const WordLists& words = WordsOf(split_);
      const auto pick = [&](const std::vector<std::string_view>& list) {
        return list[static_cast<size_t>(random_.Below(static_cast<int64_t>(list.size())))];
      };
      return Fresh([&] {
        std::string pair(pick(words.adjectives));
        pair += '-';
        pair += pick(words.nouns);
        return pair;
      });
    }
    case Vocabulary::kUuids:
      return Fresh([&] {
        while (true) {
          const uint64_t high = (random_.Bits() & ~0xf000ull) | 0x4000;
          const uint64_t low = (random_.Bits() & 0x3fffffffffffffffull) | 0x8000000000000000ull;
          std::string uuid =
              fmt::format("{:08x}-{:04x}-{:04x}-{:04x}-{:012x}", high >> 32, (high >> 16) & 0xffff,
                          high & 0xffff, low >> 48, low & 0xffffffffffffull);
          if (SplitOf(uuid) == split_) return uuid;
        }
      });
  }
  return {};
}

std::string Drawer::Letters(std::string_view alphabet, int length) {
  return Fresh([&] {
    std::string text(static_cast<size_t>(length), ' ');
    do {
      for (char& c : text) {
        c = alphabet[static_cast<size_t>(random_.Below(static_cast<int64_t>(alphabet.size())))];
      }
    } while (SplitOf(text) != split_);
    return text;
  });
}

std::string Drawer::Number(int64_t low, int64_t high) {
  return Fresh([&] {
    std::string text;
    do {
      text = fmt::format("{}", low + random_.Below(high - low));
    } while (SplitOf(text) != split_);
    return text;
  });
}

}  // namespace litecache::eval
