// Similarity of two strings, for code completion.
#pragma once

#include <string_view>

namespace litecache::eval {

// Twice the number of characters in matching blocks divided by the total number of characters, 0 to
// 1, rounded to a whole percent (half to even): `ratio` of the Python package that LongBench uses,
// in its pure-Python version. Blocks are found as in difflib: the longest common block first, then
// those to its left and right; in a `b` of 200 or more characters, characters that make up more
// than 1% of it start no block. UTF-8. Equal strings give 1, an empty and a non-empty one 0.
double EditRatio(std::string_view a, std::string_view b);

}  // namespace litecache::eval
