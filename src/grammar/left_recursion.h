// Rules that begin with themselves.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "grammar/automaton.h"

namespace litecache::grammar {

// Where the callee, before any byte, can come to call itself, itself or through others: a matcher
// would nest its calls without end. `callees`: the first states of all callees that call others.
// Returns the index of one that such a circle leads to; nullopt: there is none.
std::optional<size_t> FindLeftRecursion(const Automaton& automaton,
                                        const std::vector<StateId>& callees);

}  // namespace litecache::grammar
