// A regular expression of ECMA-262 as a tree.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "grammar/automaton.h"
#include "grammar/characters.h"

namespace litecache::grammar {

struct PatternNode;
using PatternNodePtr = std::unique_ptr<PatternNode>;
struct PatternNode {
  enum Kind { kCharacters, kSequence, kChoice, kRepeat } kind = kSequence;
  CharacterSet characters;
  std::vector<PatternNodePtr> parts;
  uint32_t min = 0;
  uint32_t max = 0;  // kUnlimited: any number
};

// `matches_whole`: the expression describes a whole text; otherwise it may match anywhere in one,
// and the tree has what precedes and follows. Throws InvalidArgument for what is no expression,
// Unsupported for what is not implemented.
PatternNodePtr ParsePatternTree(std::string_view source, bool matches_whole);

}  // namespace litecache::grammar
