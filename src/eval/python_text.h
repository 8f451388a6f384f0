// Text operations with Python's semantics, on which the benchmarks' metrics are based. Texts are
// valid UTF-8.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/jinja/unicode.h"
#include "tokenizer/unicode.h"
#include "tokenizer/utf8.h"

namespace litecache::eval {

// Bytes of the white space character at `at`, as defined by str.isspace() and \s of re; 0 if there
// is none.
inline size_t SpaceLength(std::string_view text, size_t at) {
  const auto lead = static_cast<unsigned char>(text[at]);
  if (lead < 0x80) {
    return lead == ' ' || (lead >= 0x09 && lead <= 0x0d) || (lead >= 0x1c && lead <= 0x1f) ? 1 : 0;
  }
  size_t end = at;
  return tokenizer::IsWhitespace(tokenizer::NextCodePoint(text, &end)) ? end - at : 0;
}

// text.split(): the pieces between white space, none of them empty.
std::vector<std::string_view> SplitWords(std::string_view text);

// text.strip().
std::string_view Strip(std::string_view text);

// text.split(separator).
std::vector<std::string_view> SplitAt(std::string_view text, char separator);

// text.lower(), including the final sigma of a word.
std::string ToLower(std::string_view text);

// re.findall(r"\d+", text): runs of decimal digits of any script.
std::vector<std::string_view> DigitRuns(std::string_view text);

// The digits at the beginning of `text`; may be empty.
std::string_view LeadingDigits(std::string_view text);

// \w of re: letters, numbers and the underscore, but not marks.
using tokenizer::jinja::IsWordCharacter;

// The characters of a text.
std::u32string ToCodePoints(std::string_view text);

}  // namespace litecache::eval
