#include "eval/longbench/metrics.h"

#include <algorithm>
#include <unordered_map>

#include "base/error.h"
#include "eval/longbench/edit_ratio.h"
#include "eval/longbench/rouge.h"
#include "eval/python_text.h"

namespace litecache::eval {
namespace {

constexpr std::string_view kAsciiPunctuation = R"(!"#$%&'()*+,-./:;<=>?@[\]^_`{|}~)";

bool IsAsciiPunctuation(char32_t c) {
  return c < 0x80 && kAsciiPunctuation.find(static_cast<char>(c)) != std::string_view::npos;
}

// Characters that Chinese answers lose in addition: fullwidth forms, CJK brackets, dashes and
// quotes.
bool IsChinesePunctuation(char32_t c) {
  constexpr std::u32string_view kMarks =
      U"\uFF01\uFF1F\uFF61\u3002\uFF02\uFF03\uFF04\uFF05\uFF06\uFF07\uFF08\uFF09\uFF0A\uFF0B\uFF0C"
      U"\uFF0D\uFF0F\uFF1A\uFF1B\uFF1C\uFF1D\uFF1E\uFF20\uFF3B\uFF3C\uFF3D\uFF3E\uFF3F\uFF40\uFF5B"
      U"\uFF5C\uFF5D\uFF5E\uFF5F\uFF60\uFF62\uFF63\uFF64\u3001\u3003\u300B\u300C\u300D\u300E\u300F"
      U"\u3010\u3011\u3014\u3015\u3016\u3017\u3018\u3019\u301A\u301B\u301C\u301D\u301E\u301F\u3030"
      U"\u303E\u303F\u2013\u2014\u2018\u2019\u201B\u201C\u201D\u201E\u201F\u2026\u2027\uFE4F";
  return kMarks.find(c) != std::u32string_view::npos;
}

template <typename Test>
std::string Without(std::string_view text, Test test) {
  std::string kept;
  for (size_t i = 0; i < text.size();) {
    const size_t begin = i;
    if (!test(tokenizer::NextCodePoint(text, &i))) kept += text.substr(begin, i - begin);
  }
  return kept;
}

// Replaces articles that are whole words by spaces.
std::string WithoutArticles(std::string_view text) {
  std::string kept;
  for (size_t i = 0; i < text.size();) {
    const size_t begin = i;
    size_t next = i;
    while (next < text.size() && IsWordCharacter(tokenizer::NextCodePoint(text, &next))) i = next;
    const std::string_view word = text.substr(begin, i - begin);
    if (word.empty()) {
      kept += text.substr(begin, next - begin);
      i = next;
    } else {
      kept += word == "a" || word == "an" || word == "the" ? " " : word;
    }
  }
  return kept;
}

template <typename Token>
double F1(const std::vector<Token>& prediction, const std::vector<Token>& reference) {
  std::unordered_map<std::string_view, int64_t> left;
  for (const Token& token : reference) ++left[token];
  int64_t same = 0;
  for (const Token& token : prediction) {
    if (const auto found = left.find(token); found != left.end() && found->second > 0) {
      --found->second;
      ++same;
    }
  }
  if (same == 0) return 0;
  const double precision = static_cast<double>(same) / static_cast<double>(prediction.size());
  const double recall = static_cast<double>(same) / static_cast<double>(reference.size());
  return (2 * precision * recall) / (precision + recall);
}

bool IsAsciiWord(unsigned char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

// Splits a text into single characters, and runs of ASCII letters and digits.
std::vector<std::string_view> Segments(std::string_view text) {
  std::vector<std::string_view> segments;
  for (size_t i = 0; i < text.size();) {
    const size_t begin = i;
    while (i < text.size() && IsAsciiWord(static_cast<unsigned char>(text[i]))) ++i;
    if (i == begin) i += tokenizer::SequenceLength(static_cast<unsigned char>(text[i]));
    segments.push_back(text.substr(begin, i - begin));
  }
  return segments;
}

std::vector<std::string> ChineseTokens(std::string_view text) {
  std::vector<std::string> tokens;
  for (const std::string_view segment : Segments(text)) {
    const std::string bare = Without(ToLower(segment), [](char32_t c) {
      return IsAsciiPunctuation(c) || IsChinesePunctuation(c);
    });
    std::string token;
    for (const std::string_view part : SplitWords(bare)) token += part;
    if (!token.empty()) tokens.push_back(std::move(token));
  }
  return tokens;
}

std::string SegmentsApart(std::string_view text) {
  std::string apart;
  for (const std::string_view segment : Segments(text)) {
    if (!apart.empty()) apart += ' ';
    apart += segment;
  }
  return apart;
}

double ShareOfNumbers(std::string_view prediction, std::string_view wanted) {
  const std::vector<std::string_view> numbers = DigitRuns(prediction);
  if (numbers.empty()) return 0;
  return static_cast<double>(std::count(numbers.begin(), numbers.end(), wanted)) /
         static_cast<double>(numbers.size());
}

double RetrievalAfter(std::string_view label, std::string_view prediction,
                      std::string_view reference) {
  for (size_t at = reference.find(label); at != std::string_view::npos;
       at = reference.find(label, at + 1)) {
    const std::string_view number = LeadingDigits(reference.substr(at + label.size()));
    if (!number.empty()) return ShareOfNumbers(prediction, number);
  }
  throw InvalidArgument("the reference '{}' has no '{}' with a number", reference, label);
}

}  // namespace

double QaF1(std::string_view prediction, std::string_view reference) {
  const auto normal = [](std::string_view text) {
    return WithoutArticles(Without(ToLower(text), IsAsciiPunctuation));
  };
  const std::string predicted = normal(prediction);
  const std::string expected = normal(reference);
  return F1(SplitWords(predicted), SplitWords(expected));
}

double QaF1ChineseCharacters(std::string_view prediction, std::string_view reference) {
  return F1(ChineseTokens(prediction), ChineseTokens(reference));
}

double RougeLChineseCharacters(std::string_view prediction, std::string_view reference) {
  return RougeL(SegmentsApart(prediction), SegmentsApart(reference));
}

double Classification(std::string_view prediction, std::string_view reference,
                      const std::vector<std::string>& classes) {
  std::vector<std::string_view> named;
  for (const std::string& name : classes) {
    if (prediction.find(name) != std::string_view::npos) named.push_back(name);
  }
  // The original removes entries from the list while iterating over it, which skips the entry after
  // each removed one, and removes the first of equal names. Published scores include this effect.
  for (size_t i = 0; i < named.size(); ++i) {
    const std::string_view name = named[i];
    if (name != reference && reference.find(name) != std::string_view::npos) {
      named.erase(std::find(named.begin(), named.end(), name));
    }
  }
  if (std::find(named.begin(), named.end(), reference) == named.end()) return 0;
  return 1.0 / static_cast<double>(named.size());
}

double Retrieval(std::string_view prediction, std::string_view reference) {
  return RetrievalAfter("Paragraph ", prediction, reference);
}

double RetrievalChinese(std::string_view prediction, std::string_view reference) {
  return RetrievalAfter("段落", prediction, reference);
}

double Count(std::string_view prediction, std::string_view reference) {
  return ShareOfNumbers(prediction, reference);
}

double CodeSimilarity(std::string_view prediction, std::string_view reference) {
  std::string_view completed;
  prediction.remove_prefix(std::min(prediction.find_first_not_of('\n'), prediction.size()));
  for (const std::string_view line : SplitAt(prediction, '\n')) {
    if (line.find_first_of("`#") == std::string_view::npos &&
        line.find("//") == std::string_view::npos) {
      completed = line;
      break;
    }
  }
  return EditRatio(completed, reference);
}

std::string_view FirstLine(std::string_view prediction) {
  prediction.remove_prefix(std::min(prediction.find_first_not_of('\n'), prediction.size()));
  return prediction.substr(0, prediction.find('\n'));
}

}  // namespace litecache::eval
