// How alike two strings are, for completed code.
#pragma once

#include <string_view>

namespace litecache::eval {

// Twice the characters in matching blocks over all characters, rounded to a whole percent (a half
// to the even one), 0 to 1: `ratio` of the Python package that LongBench uses, in the form without
// compiled parts. Blocks are found as difflib does: the longest common block first, then those to
// its left and right, where characters that make up more than 1% of a `b` of 200 or more characters
// begin no block. UTF-8. Equal strings give 1, an empty one beside another 0.
double EditRatio(std::string_view a, std::string_view b);

}  // namespace litecache::eval
