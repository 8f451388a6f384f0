#include "eval/python_text.h"

namespace litecache::eval {

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
  std::string lower;
  lower.reserve(text.size());
  for (size_t i = 0; i < text.size(); tokenizer::NextCodePoint(text, &i)) {
    tokenizer::jinja::AppendLower(text, i, &lower);
  }
  return lower;
}

std::string_view LeadingDigits(std::string_view text) {
  size_t end = 0;
  for (size_t i = 0; i < text.size(); end = i) {
    if (!tokenizer::jinja::IsDigit(tokenizer::NextCodePoint(text, &i))) break;
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

std::u32string ToCodePoints(std::string_view text) {
  std::u32string characters;
  characters.reserve(text.size());
  for (size_t i = 0; i < text.size();) characters += tokenizer::NextCodePoint(text, &i);
  return characters;
}

}  // namespace litecache::eval
