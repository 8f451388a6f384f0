// Grammars in GBNF, the notation of llama.cpp.
#pragma once

#include <string_view>

#include "grammar/automaton.h"

namespace litecache::grammar {

// The texts of the rule `root`. Rules are NAME ::= alternatives of sequences of "literals",
// [classes], ., names and (groups), each with * + ? or {m,n} behind it; # begins a comment; a line
// ends a rule except inside of () and behind |. Throws InvalidArgument naming the line: for what is
// no grammar, for rules that are missing or defined twice, and for left recursion (write * or +);
// Unsupported for tokens (<[1000]>) and for more than 10,000 repetitions.
Automaton CompileGbnf(std::string_view grammar);

}  // namespace litecache::grammar
