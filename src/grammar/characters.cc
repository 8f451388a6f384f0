#include "grammar/characters.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <string>

#include "base/work_limit.h"
#include "tokenizer/utf8.h"

namespace litecache::grammar {
namespace {

constexpr uint32_t kLast = 0x10FFFF;
constexpr uint32_t kSurrogate = 0xD800;
constexpr uint32_t kSurrogateEnd = 0xE000;

// The letter of JSON's two-character escape; 0 if there is none.
char ShortEscape(uint32_t character) {
  switch (character) {
    case '"':
    case '\\':
      return static_cast<char>(character);
    case '\b':
      return 'b';
    case '\f':
      return 'f';
    case '\n':
      return 'n';
    case '\r':
      return 'r';
    case '\t':
      return 't';
    default:
      return 0;
  }
}

bool NeedsEscape(uint32_t character) {
  return character < 0x20 || character == '"' || character == '\\';
}

}  // namespace

CharacterSet CharacterSet::All() { return {{0, kSurrogate - 1}, {kSurrogateEnd, kLast}}; }

void CharacterSet::Add(uint32_t first, uint32_t last) {
  // The ranges that touch the new one; it replaces them.
  const auto begin =
      std::lower_bound(ranges_.begin(), ranges_.end(), first,
                       [](const Range& range, uint32_t c) { return range.second + 1 < c; });
  CheckWork(1 + (ranges_.end() - begin) / 64);
  auto end = begin;
  for (; end != ranges_.end() && end->first <= last + 1; ++end) {
    first = std::min(first, end->first);
    last = std::max(last, end->second);
  }
  if (begin == end) {
    ranges_.insert(begin, {first, last});
  } else {
    *begin = {first, last};
    ranges_.erase(begin + 1, end);
  }
}

void CharacterSet::Add(const CharacterSet& other) {
  for (const Range& range : other.ranges_) Add(range.first, range.second);
}

CharacterSet CharacterSet::Complement() const {
  CharacterSet result;
  const auto add = [&](uint32_t first, uint32_t end) {  // leaves out the surrogates
    if (first < std::min(end, kSurrogate)) result.Add(first, std::min(end, kSurrogate) - 1);
    if (std::max(first, kSurrogateEnd) < end) result.Add(std::max(first, kSurrogateEnd), end - 1);
  };
  uint32_t next = 0;
  for (const Range& range : ranges_) {
    add(next, range.first);
    next = range.second + 1;
  }
  add(next, kLast + 1);
  return result;
}

void WriteUtf8(AutomatonBuilder* builder, StateId from, uint32_t first, uint32_t last, StateId to) {
  // Cut where the length changes, then until all bytes after the first differing one cover 80 .. BF
  // completely: each piece is a sequence of byte ranges.
  for (const uint32_t end : {0x7Fu, 0x7FFu, 0xFFFFu}) {
    if (first <= end && end < last) {
      WriteUtf8(builder, from, first, end, to);
      return WriteUtf8(builder, from, end + 1, last, to);
    }
  }
  for (int i = 1; i < 4; ++i) {
    const uint32_t low = (1u << (6 * i)) - 1;
    if ((first & ~low) == (last & ~low)) continue;
    if ((first & low) != 0) {
      WriteUtf8(builder, from, first, first | low, to);
      return WriteUtf8(builder, from, (first | low) + 1, last, to);
    }
    if ((last & low) != low) {
      WriteUtf8(builder, from, first, (last & ~low) - 1, to);
      return WriteUtf8(builder, from, last & ~low, last, to);
    }
  }
  std::string a, b;
  tokenizer::AppendUtf8(first, &a);
  tokenizer::AppendUtf8(last, &b);
  for (size_t i = 0; i < a.size(); ++i) {
    const StateId next = i + 1 == a.size() ? to : builder->Add();
    builder->Bytes(from, static_cast<uint8_t>(a[i]), static_cast<uint8_t>(b[i]), next);
    from = next;
  }
}

bool CharacterWriter::Escapes(uint32_t character) const {
  return form_ == kJson && NeedsEscape(character);
}

void CharacterWriter::One(StateId from, const CharacterSet& set, StateId to) {
  bool rest = false;
  for (auto [first, last] : set.ranges()) {
    rest = rest || last >= 0x80;
    for (uint32_t c = first; c <= std::min(last, 0x7Fu);) {
      if (Escapes(c)) {
        rest = true;
        ++c;
        continue;
      }
      uint32_t end = c;
      while (end < std::min(last, 0x7Fu) && !Escapes(end + 1)) ++end;
      builder_.Bytes(from, static_cast<uint8_t>(c), static_cast<uint8_t>(end), to);
      c = end + 1;
    }
  }
  if (rest) builder_.Call(from, Rest(set), to);
}

StateId CharacterWriter::Rest(const CharacterSet& set) {
  const auto found = rest_.find(set);
  if (found != rest_.end()) return found->second;
  const StateId start = builder_.Add();
  const StateId end = builder_.AddEnd();
  for (auto [first, last] : set.ranges()) {
    for (uint32_t c = first; c <= std::min(last, 0x7Fu); ++c) {
      if (!Escapes(c)) continue;
      const char letter = ShortEscape(c);
      builder_.Literal(
          start, letter != 0 ? fmt::format("\\{}", letter) : fmt::format("\\u{:04x}", c), end);
    }
    if (last >= 0x80) WriteUtf8(&builder_, start, std::max(first, 0x80u), last, end);
  }
  rest_.emplace(set, start);
  return start;
}

void CharacterWriter::All(StateId from, const CharacterAutomaton& characters, uint32_t min,
                          uint32_t max, StateId to) {
  // If lengths are bounded, a state is a node plus the number of characters so far; beyond `min`
  // without a maximum nothing needs counting.
  const uint32_t levels = max == kUnlimited ? min : max;
  std::map<std::pair<int, uint32_t>, StateId> states;
  std::vector<std::pair<int, uint32_t>> work;
  const auto state_of = [&](int node, uint32_t level) {
    const auto [found, added] = states.try_emplace({node, level}, 0);
    if (added) {
      found->second = builder_.Add();
      work.emplace_back(node, level);
    }
    return found->second;
  };
  builder_.Jump(from, state_of(characters.start, 0));
  while (!work.empty()) {
    const auto [id, level] = work.back();
    work.pop_back();
    const StateId state = states.at({id, level});
    const auto& node = characters.nodes[static_cast<size_t>(id)];
    if (node.accepts && level >= min) builder_.Jump(state, to);
    for (const int target : node.jumps) builder_.Jump(state, state_of(target, level));
    if (max != kUnlimited && level == max) continue;
    for (const auto& edge : node.edges) {
      One(state, edge.characters, state_of(edge.target, std::min(level + 1, levels)));
    }
  }
}

}  // namespace litecache::grammar
