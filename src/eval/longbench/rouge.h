// ROUGE-L as LongBench measures summaries.
#pragma once

#include <string_view>

namespace litecache::eval {

// F1 of ROUGE-L over distinct words, 0 to 1, as the Python package `rouge` 1.0.1 has it: sentences
// end at full stops; for every pair of a reference and a predicted sentence one longest common
// subsequence of words is found; precision and recall are the distinct words of all of these over
// the distinct words of either text. A text without sentences gives 0. UTF-8. Throws
// InvalidArgument where two sentences have more than 2^34 pairs of words.
double RougeL(std::string_view prediction, std::string_view reference);

}  // namespace litecache::eval
