// Regular expressions of JSON Schema's `pattern`.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "grammar/characters.h"

namespace litecache::grammar {

// The texts in which the expression matches anywhere, or from the beginning or to the end if it
// contains ^ or $; `whole`: the texts that it matches from end to end. Supports a subset of
// ECMA-262: characters, ., classes with ranges, \d \w \s and their opposites, \n \t \xHH \uHHHH and
// the like, groups, alternatives, * + ? {m,n} (lazy or not, which makes no difference), and ^ and $
// at the ends of the expression's top-level alternatives. . does not match line breaks; \d and \w
// are ASCII. Throws InvalidArgument for malformed expressions, and Unsupported for look-around,
// back references, \b, \p and the like, and for more than 20000 states.
CharacterAutomaton ParsePattern(std::string_view pattern, bool whole = false);

// Accepts every text except these.
CharacterAutomaton AllBut(const std::vector<std::u32string>& texts);

// Accepts those of the texts that do not contain `part`. Throws Unsupported if that takes too many
// states.
CharacterAutomaton Without(std::u32string_view part, const CharacterAutomaton& texts);

// Decodes UTF-8; `text` must be valid.
std::u32string ToCharacters(std::string_view text);

}  // namespace litecache::grammar
