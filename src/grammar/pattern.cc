#include "grammar/pattern.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/work_limit.h"
#include "grammar/pattern_parser.h"
#include "tokenizer/utf8.h"

namespace litecache::grammar {
namespace {

constexpr size_t kMaxPatternNodes = 20'000;
constexpr size_t kMaxPatternRanges = 1'000'000;  // of all nodes' characters

// Thompson's construction.
class Constructor {
 public:
  CharacterAutomaton Make(const PatternNode& node) {
    const int start = Add(), end = Add();
    Write(node, start, end);
    result_.start = start;
    result_.nodes[static_cast<size_t>(end)].accepts = true;
    return std::move(result_);
  }

 private:
  int Add() {
    if (result_.nodes.size() >= kMaxPatternNodes) {
      throw Unsupported(
          "a pattern of more than {} states is not supported: its repetitions are "
          "too long",
          kMaxPatternNodes);
    }
    return result_.Add();
  }
  void Jump(int from, int to) { result_.nodes[static_cast<size_t>(from)].jumps.push_back(to); }

  void Write(const PatternNode& node, int from, int to) {
    switch (node.kind) {
      case PatternNode::kCharacters:
        ranges_ += node.characters.ranges().size();
        if (ranges_ > kMaxPatternRanges) throw Unsupported("a pattern's classes are too large");
        result_.nodes[static_cast<size_t>(from)].edges.push_back({node.characters, to});
        break;
      case PatternNode::kSequence:
        for (const PatternNodePtr& part : node.parts) {
          const int next = Add();
          Write(*part, from, next);
          from = next;
        }
        Jump(from, to);
        break;
      case PatternNode::kChoice:
        for (const PatternNodePtr& part : node.parts) {
          const int begin = Add();
          Jump(from, begin);
          Write(*part, begin, to);
        }
        break;
      case PatternNode::kRepeat:
        for (uint32_t i = 0; i < node.min; ++i) {
          const int next = Add();
          Write(*node.parts[0], from, next);
          from = next;
        }
        if (node.max == kUnlimited) {
          const int loop = Add(), after = Add();
          Jump(from, loop);
          Write(*node.parts[0], loop, after);
          Jump(after, loop);
          Jump(loop, to);
        } else {
          for (uint32_t i = node.min; i < node.max; ++i) {
            const int next = Add();
            Jump(from, to);
            Write(*node.parts[0], from, next);
            from = next;
          }
          Jump(from, to);
        }
        break;
    }
  }

  CharacterAutomaton result_;
  size_t ranges_ = 0;
};

}  // namespace

std::u32string ToCharacters(std::string_view text) {
  std::u32string characters;
  for (size_t at = 0; at < text.size();) characters += tokenizer::NextCodePoint(text, &at);
  return characters;
}

CharacterAutomaton ParsePattern(std::string_view pattern, bool whole) {
  return Constructor().Make(*ParsePatternTree(pattern, whole));
}

CharacterAutomaton AllBut(const std::vector<std::u32string>& texts) {
  // A node for every prefix of a text; a character that continues none of them leads to `other`.
  CharacterAutomaton result;
  result.start = result.Add();
  std::vector<std::map<uint32_t, int>> next(1);  // keyed by node and character
  std::vector<int> ends;
  for (const std::u32string& text : texts) {
    int node = result.start;
    for (const uint32_t c : text) {
      CheckWork();
      const auto [found, added] = next[static_cast<size_t>(node)].try_emplace(c, 0);
      node = added ? result.Add() : found->second;
      found->second = node;
      if (added) next.emplace_back();
    }
    ends.push_back(node);
  }
  const int other = result.Add();
  for (size_t i = 0; i < next.size(); ++i) {
    auto& node = result.nodes[i];
    CharacterSet known;
    for (const auto& [c, target] : next[i]) {
      node.edges.push_back({{{c, c}}, target});
      known.Add(c, c);
    }
    node.edges.push_back({known.Complement(), other});
    node.accepts = true;
  }
  for (const int end : ends) result.nodes[static_cast<size_t>(end)].accepts = false;
  auto& rest = result.nodes[static_cast<size_t>(other)];
  rest.accepts = true;
  rest.edges.push_back({CharacterSet::All(), other});
  return result;
}

CharacterAutomaton Without(std::u32string_view part, const CharacterAutomaton& texts) {
  // A node is one of `texts` together with how much of the part has just been read.
  CharacterAutomaton result;
  std::map<std::pair<int, size_t>, int> nodes;
  std::vector<std::pair<int, size_t>> work;
  size_t ranges = 0;
  const auto node_of = [&](int node, size_t read) {
    const auto [found, added] = nodes.try_emplace({node, read}, 0);
    if (!added) return found->second;
    if (nodes.size() > AutomatonBuilder::kMaxStates) {
      throw Unsupported("a pattern for a text in tags is too long");
    }
    work.emplace_back(node, read);
    return found->second = result.Add();
  };
  const auto read_after = [&](size_t read, char32_t c) {
    std::u32string behind(part.substr(0, read));
    behind += c;
    while (!part.starts_with(behind)) behind.erase(0, 1);
    return behind.size();
  };
  const std::set<char32_t> letters(part.begin(), part.end());
  result.start = node_of(texts.start, 0);
  while (!work.empty()) {
    const auto [id, read] = work.back();
    work.pop_back();
    const auto& node = texts.nodes[static_cast<size_t>(id)];
    CharacterAutomaton::Node made;
    made.accepts = node.accepts;
    for (const int target : node.jumps) made.jumps.push_back(node_of(target, read));
    for (const auto& [characters, target] : node.edges) {
      std::map<size_t, CharacterSet> next;  // by how much of the part has been read then
      CharacterSet others = characters.Complement();
      for (const char32_t c : letters) {
        const bool allowed = std::ranges::any_of(characters.ranges(), [&](const auto& range) {
          return range.first <= c && c <= range.second;
        });
        if (allowed) next[read_after(read, c)].Add(c, c);
        others.Add(c, c);
      }
      next[0].Add(others.Complement());
      next.erase(part.size());
      for (auto& [count, set] : next) {
        ranges += set.ranges().size();
        if (ranges > kMaxPatternRanges) throw Unsupported("a pattern's classes are too large");
        if (!set.ranges().empty()) made.edges.push_back({std::move(set), node_of(target, count)});
      }
    }
    result.nodes[static_cast<size_t>(nodes.at({id, read}))] = std::move(made);
  }
  return result;
}

}  // namespace litecache::grammar
