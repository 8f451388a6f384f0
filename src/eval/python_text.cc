#include "eval/python_text.h"

#include <utf8proc.h>

namespace litecache::eval {
namespace {

utf8proc_category_t Category(char32_t c) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(c));
}

// The property Cased: letters of two cases, and what else has a case mapping (Roman numerals).
bool IsCased(char32_t c) {
  switch (Category(c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
      return true;
    default:
      break;
  }
  const auto code = static_cast<utf8proc_int32_t>(c);
  return c == 0xAA || c == 0xBA || utf8proc_islower(code) != 0 || utf8proc_isupper(code) != 0;
}

// The property Case_Ignorable: what stands inside words without ending them.
bool IsCaseIgnorable(char32_t c) {
  switch (Category(c)) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_SK:
      return true;
    default:
      break;
  }
  constexpr std::u32string_view kInner =
      U"'.:\u00B7\u0387\u055F\u05F4\u2018\u2019\u2024\u2027\uFE13\uFE52\uFE55\uFF07\uFF0E\uFF1A";
  return kInner.find(c) != std::u32string_view::npos;
}

// Whether the capital sigma text[at] ends a word.
bool IsFinalSigma(const std::u32string& text, size_t at) {
  size_t before = at;
  while (before > 0 && IsCaseIgnorable(text[before - 1])) --before;
  if (before == 0 || !IsCased(text[before - 1])) return false;
  size_t after = at + 1;
  while (after < text.size() && IsCaseIgnorable(text[after])) ++after;
  return after == text.size() || !IsCased(text[after]);
}

}  // namespace

std::vector<std::string_view> SplitWords(std::string_view text) {
  std::vector<std::string_view> words;
  for (size_t i = 0; i < text.size();) {
    if (const size_t space = SpaceLength(text, i); space > 0) {
      i += space;
      continue;
    }
    const size_t begin = i;
    while (i < text.size() && SpaceLength(text, i) == 0) {
      i += tokenizer::SequenceLength(static_cast<unsigned char>(text[i]));
    }
    words.push_back(text.substr(begin, i - begin));
  }
  return words;
}

std::string_view Strip(std::string_view text) {
  size_t begin = 0;
  while (begin < text.size()) {
    const size_t space = SpaceLength(text, begin);
    if (space == 0) break;
    begin += space;
  }
  size_t end = text.size();
  while (end > begin) {
    const size_t last = tokenizer::PreviousCharacter(text, end);
    if (SpaceLength(text, last) == 0) break;
    end = last;
  }
  return text.substr(begin, end - begin);
}

std::vector<std::string_view> SplitAt(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (true) {
    const size_t end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

std::string ToLower(std::string_view text) {
  constexpr char32_t kSigma = 0x3A3;
  constexpr char32_t kFinalSigma = 0x3C2;
  const std::u32string characters = ToCodePoints(text);
  std::string lower;
  lower.reserve(text.size());
  for (size_t i = 0; i < characters.size(); ++i) {
    if (characters[i] == kSigma && IsFinalSigma(characters, i)) {
      tokenizer::AppendUtf8(kFinalSigma, &lower);
    } else {
      tokenizer::AppendLower(characters[i], &lower);
    }
  }
  return lower;
}

std::string_view LeadingDigits(std::string_view text) {
  size_t end = 0;
  for (size_t i = 0; i < text.size(); end = i) {
    if (Category(tokenizer::NextCodePoint(text, &i)) != UTF8PROC_CATEGORY_ND) break;
  }
  return text.substr(0, end);
}

std::vector<std::string_view> DigitRuns(std::string_view text) {
  std::vector<std::string_view> runs;
  for (size_t i = 0; i < text.size();) {
    if (const std::string_view run = LeadingDigits(text.substr(i)); !run.empty()) {
      runs.push_back(run);
      i += run.size();
    } else {
      i += tokenizer::SequenceLength(static_cast<unsigned char>(text[i]));
    }
  }
  return runs;
}

bool IsWordCharacter(char32_t c) {
  switch (Category(c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO:
      return true;
    default:
      return c == '_';
  }
}

std::u32string ToCodePoints(std::string_view text) {
  std::u32string characters;
  characters.reserve(text.size());
  for (size_t i = 0; i < text.size();) characters += tokenizer::NextCodePoint(text, &i);
  return characters;
}

}  // namespace litecache::eval
