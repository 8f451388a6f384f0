#include "grammar/pattern_parser.h"

#include <fmt/core.h>

#include <optional>
#include <string>
#include <utility>

#include "base/error.h"
#include "grammar/pattern.h"

namespace litecache::grammar {
namespace {

constexpr uint32_t kMaxRepeat = 10'000;
constexpr int kMaxPatternDepth = 100;

PatternNodePtr MakeCharacters(CharacterSet set) {
  auto node = std::make_unique<PatternNode>();
  node->kind = PatternNode::kCharacters;
  node->characters = std::move(set);
  return node;
}

PatternNodePtr MakeRepeat(PatternNodePtr part, uint32_t min, uint32_t max) {
  auto node = std::make_unique<PatternNode>();
  node->kind = PatternNode::kRepeat;
  node->parts.push_back(std::move(part));
  node->min = min;
  node->max = max;
  return node;
}

PatternNodePtr Anything() { return MakeRepeat(MakeCharacters(CharacterSet::All()), 0, kUnlimited); }

const CharacterSet kDigits = {{'0', '9'}};
const CharacterSet kWord = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
const CharacterSet kSpace = {{'\t', '\r'}, {' ', ' '}};
const CharacterSet kLineBreaks = {{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}};

class PatternParser {
 public:
  explicit PatternParser(std::string_view source) : source_(source), text_(ToCharacters(source)) {}

  PatternNodePtr Parse(bool matches_whole) {
    auto choice = std::make_unique<PatternNode>();
    choice->kind = PatternNode::kChoice;
    do {
      auto whole = std::make_unique<PatternNode>();
      if (!Take('^') && !matches_whole) whole->parts.push_back(Anything());
      whole->parts.push_back(Sequence());
      if (!Take('$') && !matches_whole) whole->parts.push_back(Anything());
      if (!AtEnd() && Peek() != '|') {
        if (Peek() == ')') Malformed("there is a ) without its (");
        Missing("^ and $ other than at the ends");
      }
      choice->parts.push_back(std::move(whole));
    } while (Take('|'));
    return choice;
  }

 private:
  bool AtEnd() const { return at_ == text_.size(); }
  char32_t Peek() const { return text_[at_]; }
  bool Take(char32_t c) {
    if (AtEnd() || Peek() != c) return false;
    ++at_;
    return true;
  }
  char32_t Next() {
    if (AtEnd()) Malformed("it ends too early");
    return text_[at_++];
  }
  [[noreturn]] void Malformed(std::string_view why) const {
    throw InvalidArgument("'{}' is no regular expression: {}", source_, why);
  }
  [[noreturn]] void Missing(std::string_view what) const {
    throw Unsupported("'{}': {} are not supported", source_, what);
  }

  PatternNodePtr Choice() {
    if (++depth_ > kMaxPatternDepth) Malformed("groups are nested too deep");
    auto node = std::make_unique<PatternNode>();
    node->kind = PatternNode::kChoice;
    do {
      node->parts.push_back(Sequence());
    } while (Take('|'));
    --depth_;
    return node;
  }

  PatternNodePtr Sequence() {
    auto node = std::make_unique<PatternNode>();
    while (!AtEnd() && Peek() != '|' && Peek() != ')' && Peek() != '$' && Peek() != '^') {
      node->parts.push_back(Repeats(Atom()));
    }
    return node;
  }

  PatternNodePtr Repeats(PatternNodePtr atom) {
    if (AtEnd()) return atom;
    uint32_t min = 0, max = kUnlimited;
    if (Take('+')) {
      min = 1;
    } else if (Take('?')) {
      max = 1;
    } else if (!Take('*')) {
      if (Peek() != '{' || !Counts(&min, &max)) return atom;
    }
    Take('?');
    if (!AtEnd() && (Peek() == '*' || Peek() == '+' || Peek() == '?')) {
      Malformed("there is nothing to repeat");
    }
    return MakeRepeat(std::move(atom), min, max);
  }

  // Parses {m}, {m,} or {m,n}; anything else is literal text.
  bool Counts(uint32_t* min, uint32_t* max) {
    const size_t begin = at_++;
    const auto low = Count();
    if (low && Take('}')) {
      *min = *max = *low;
      return true;
    }
    if (low && Take(',')) {
      const auto high = Count();
      if (Take('}')) {
        *min = *low;
        *max = high.value_or(kUnlimited);
        if (*max < *min) Malformed("a repetition's bounds are out of order");
        return true;
      }
    }
    at_ = begin;
    return false;
  }
  std::optional<uint32_t> Count() {
    std::optional<uint32_t> count;
    while (!AtEnd() && Peek() >= '0' && Peek() <= '9') {
      count = count.value_or(0) * 10 + (Next() - '0');
      if (*count > kMaxRepeat) Missing("repetitions of more than 10000");
    }
    return count;
  }

  PatternNodePtr Atom() {
    const char32_t c = Next();
    switch (c) {
      case '.':
        return MakeCharacters(kLineBreaks.Complement());
      case '(':
        return Group();
      case '[':
        return MakeCharacters(Class());
      case '\\':
        return MakeCharacters(Escape());
      case '*':
      case '+':
      case '?':
        Malformed("there is nothing to repeat");
      default:
        if (c == '{') --at_;
        if (uint32_t min, max; c == '{' && Counts(&min, &max))
          Malformed("there is nothing to repeat");
        if (c == '{') ++at_;
        return MakeCharacters({{c, c}});
    }
  }

  PatternNodePtr Group() {
    if (Take('?')) {
      if (Take('<')) {
        if (!AtEnd() && (Peek() == '=' || Peek() == '!')) Missing("look-arounds");
        while (Next() != '>') {
        }
      } else if (!Take(':')) {
        Missing("look-arounds and flags");
      }
    }
    PatternNodePtr inside = Choice();
    if (!Take(')')) {
      if (AtEnd()) Malformed("a ( lacks its )");
      Missing("^ and $ other than at the ends");
    }
    return inside;
  }

  CharacterSet Class() {
    const bool negated = Take('^');
    CharacterSet set;
    while (!Take(']')) {
      const auto [low, single] = ClassItem();
      if (single && at_ + 1 < text_.size() && Peek() == '-' && text_[at_ + 1] != ']') {
        ++at_;
        const auto [high, also_single] = ClassItem();
        if (!also_single) Malformed("a range in [] ends in a class");
        const uint32_t first = low.ranges()[0].first, last = high.ranges()[0].first;
        if (last < first) Malformed("a range in [] is out of order");
        set.Add(first, last);
      } else {
        set.Add(low);
      }
    }
    return negated ? set.Complement() : set;
  }
  // Parses a set; the second value is true if it is a single character.
  std::pair<CharacterSet, bool> ClassItem() {
    const char32_t c = Next();
    if (c != '\\') return {{{c, c}}, true};
    if (Take('b')) return {{{'\b', '\b'}}, true};
    if (Take('-')) return {{{'-', '-'}}, true};
    CharacterSet set = Escape();
    const bool single = set.ranges().size() == 1 && set.ranges()[0].first == set.ranges()[0].second;
    return {std::move(set), single};
  }

  uint32_t Hex(int digits) {
    uint32_t value = 0;
    for (int i = 0; i < digits; ++i) {
      const char32_t c = Next();
      if (c >= '0' && c <= '9') {
        value = value * 16 + (c - '0');
      } else if ((c | 0x20) >= 'a' && (c | 0x20) <= 'f') {
        value = value * 16 + ((c | 0x20) - 'a' + 10);
      } else {
        Malformed("hexadecimal digits are expected");
      }
    }
    return value;
  }

  CharacterSet Escape() {
    const char32_t c = Next();
    const auto one = [](uint32_t character) { return CharacterSet{{character, character}}; };
    switch (c) {
      case 'd':
        return kDigits;
      case 'D':
        return kDigits.Complement();
      case 'w':
        return kWord;
      case 'W':
        return kWord.Complement();
      case 's':
        return kSpace;
      case 'S': {
        // Blanks beyond ASCII belong neither to \s nor to \S: dialects differ about them.
        CharacterSet blanks = kSpace;
        for (const CharacterSet& more :
             {CharacterSet{{0x1C, 0x1F}, {0x85, 0x85}, {0xA0, 0xA0}, {0x1680, 0x1680}},
              CharacterSet{{0x2000, 0x200A},
                           {0x2028, 0x2029},
                           {0x202F, 0x202F},
                           {0x205F, 0x205F},
                           {0x3000, 0x3000},
                           {0xFEFF, 0xFEFF}}}) {
          blanks.Add(more);
        }
        return blanks.Complement();
      }
      case 't':
        return one('\t');
      case 'n':
        return one('\n');
      case 'r':
        return one('\r');
      case 'f':
        return one('\f');
      case 'v':
        return one('\v');
      case 'x':
        return one(Hex(2));
      case 'u': {
        if (Take('{')) Missing("\\u{...}");
        const uint32_t value = Hex(4);
        if (value >= 0xD800 && value < 0xE000) Missing("surrogates");
        return one(value);
      }
      default:
        if (c == '0' && (AtEnd() || Peek() < '0' || Peek() > '9')) return one(0);
        if (c >= '0' && c <= '9') Missing("back references");
        if (c == 'b' || c == 'B') Missing("word boundaries");
        if ((c | 0x20) >= 'a' && (c | 0x20) <= 'z') {
          Missing(fmt::format("escapes such as \\{}", static_cast<char>(c)));
        }
        return one(c);
    }
  }

  std::string_view source_;
  std::u32string text_;
  size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace

PatternNodePtr ParsePatternTree(std::string_view source, bool matches_whole) {
  return PatternParser(source).Parse(matches_whole);
}

}  // namespace litecache::grammar
