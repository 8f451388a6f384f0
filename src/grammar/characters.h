// Sets of characters, and automata over characters that are written as bytes.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "grammar/automaton.h"

namespace litecache::grammar {

// Unicode scalar values as sorted, disjoint ranges, inclusive at both ends.
class CharacterSet {
 public:
  using Range = std::pair<uint32_t, uint32_t>;

  CharacterSet() = default;
  CharacterSet(std::initializer_list<Range> ranges) {
    for (const Range& range : ranges) Add(range.first, range.second);
  }
  static CharacterSet All();

  void Add(uint32_t first, uint32_t last);
  void Add(const CharacterSet& other);
  CharacterSet Complement() const;
  const std::vector<Range>& ranges() const { return ranges_; }
  auto operator<=>(const CharacterSet&) const = default;

 private:
  std::vector<Range> ranges_;
};

// A nondeterministic automaton over characters.
struct CharacterAutomaton {
  struct Edge {
    CharacterSet characters;
    int target = 0;
  };
  struct Node {
    std::vector<Edge> edges;
    std::vector<int> jumps;
    bool accepts = false;
  };
  std::vector<Node> nodes;
  int start = 0;

  int Add() {
    nodes.emplace_back();
    return static_cast<int>(nodes.size() - 1);
  }
};

// Writes characters into an automaton over bytes: as they are, in UTF-8, or as in JSON strings,
// where a character is written as itself, or as its short escape (\u00XX for control characters) if
// JSON requires one: each has exactly one notation.
class CharacterWriter {
 public:
  enum Form { kJson, kPlain };
  explicit CharacterWriter(AutomatonBuilder* builder, Form form = kJson)
      : builder_(*builder), form_(form) {}

  // Accepts one character of the set between two states.
  void One(StateId from, const CharacterSet& set, StateId to);
  // Accepts texts of min to max characters that `characters` accepts, between two states.
  void All(StateId from, const CharacterAutomaton& characters, uint32_t min, uint32_t max,
           StateId to);

 private:
  // A callee for everything except single bytes that stand for themselves.
  StateId Rest(const CharacterSet& set);
  bool Escapes(uint32_t character) const;

  AutomatonBuilder& builder_;
  Form form_;
  std::map<CharacterSet, StateId> rest_;
};

// Writes the UTF-8 bytes of the characters first .. last, all 0x80 or more, between two states.
void WriteUtf8(AutomatonBuilder* builder, StateId from, uint32_t first, uint32_t last, StateId to);

}  // namespace litecache::grammar
