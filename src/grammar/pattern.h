// Regular expressions of JSON Schema's `pattern`.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "grammar/characters.h"

namespace litecache::grammar {

// The texts in which the expression matches somewhere, or from the beginning or to the end where it
// says ^ or $. The subset of ECMA-262: characters, ., classes with ranges, \d \w \s and their
// opposites, \n \t \xHH \uHHHH and the like, groups, alternatives, * + ? {m,n} (lazy or not: it
// makes no difference); ^ and $ at the ends of the expression's own alternatives. . is no line
// break; \d and \w are ASCII. Throws InvalidArgument for what is no expression, Unsupported for
// look-around, back references, \b, \p and the like, and for more than 20000 states.
CharacterAutomaton ParsePattern(std::string_view pattern);

// Every text but these.
CharacterAutomaton AllBut(const std::vector<std::u32string>& texts);

// UTF-8 to characters; `text` is valid.
std::u32string ToCharacters(std::string_view text);

}  // namespace litecache::grammar
