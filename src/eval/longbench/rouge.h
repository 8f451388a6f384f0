// ROUGE-L as used by LongBench for summaries.
#pragma once

#include <string_view>

namespace litecache::eval {

// F1 of ROUGE-L over distinct words, 0 to 1, as in the Python package `rouge` 1.0.1: sentences end
// at full stops; one longest common subsequence of words is found for every pair of a reference and
// a predicted sentence; precision and recall are the distinct words of all of them divided by the
// distinct words of either text. A text without sentences gives 0. UTF-8. Throws InvalidArgument if
// two sentences have more than 2^34 pairs of words.
double RougeL(std::string_view prediction, std::string_view reference);

}  // namespace litecache::eval
