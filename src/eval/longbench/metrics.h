// LongBench's metrics, each for one prediction and one reference, 0 to 1. Texts are valid UTF-8.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace litecache::eval {

// F1 over the common words, in lower case, without punctuation and articles.
double QaF1(std::string_view prediction, std::string_view reference);

// The same for Chinese. The original splits texts into words with a dictionary; here every
// character is a word, except runs of ASCII letters and digits, so scores are comparable with each
// other but not with published ones.
double QaF1ChineseCharacters(std::string_view prediction, std::string_view reference);
double RougeLChineseCharacters(std::string_view prediction, std::string_view reference);

// 1 divided by the number of classes that the prediction names, if the right one is among them. A
// class whose name is part of the right one's name does not count, except, as in the original,
// directly after another such class.
double Classification(std::string_view prediction, std::string_view reference,
                      const std::vector<std::string>& classes);

// Share of the numbers in the prediction that equal the one in the reference, "Paragraph 12" or
// "段落12". Throws InvalidArgument for a reference without a number.
double Retrieval(std::string_view prediction, std::string_view reference);
double RetrievalChinese(std::string_view prediction, std::string_view reference);

// Share of the numbers in the prediction that equal the reference.
double Count(std::string_view prediction, std::string_view reference);

// EditRatio of the reference and the prediction's first line that contains no backquote, # or //.
double CodeSimilarity(std::string_view prediction, std::string_view reference);

// The first non-empty line.
std::string_view FirstLine(std::string_view prediction);

}  // namespace litecache::eval
