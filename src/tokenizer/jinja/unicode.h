// The Unicode rules of Python's str, on valid UTF-8.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/utf8.h"

namespace litecache::tokenizer::jinja {

size_t CountCodePoints(std::string_view text);
// The byte offset of code point number `index`; text.size() if there are fewer.
size_t ByteOffset(std::string_view text, size_t index);
// Byte offsets of all code points, then text.size().
std::vector<size_t> CodePointOffsets(std::string_view text);

bool IsSpace(char32_t c);      // str.isspace
bool IsLineBreak(char32_t c);  // where str.splitlines splits
bool IsPrintable(char32_t c);  // characters that repr does not escape
bool IsAlpha(char32_t c);
bool IsDigit(char32_t c);
bool IsNumeric(char32_t c);
bool IsUpper(char32_t c);
bool IsLower(char32_t c);
bool IsTitle(char32_t c);
bool IsCased(char32_t c);
bool IsWordCharacter(char32_t c);  // \w of a regular expression

// Full case mappings (one code point may become several), appended to *out.
void AppendUpper(char32_t c, std::string* out);
void AppendTitle(char32_t c, std::string* out);
// Lower case of the code point at byte `position` of `text`; for a capital sigma it depends on the
// neighbours.
void AppendLower(std::string_view text, size_t position, std::string* out);

// Offsets of the text without leading / trailing white space.
size_t SkipSpaces(std::string_view text, size_t begin);
size_t TrimSpaces(std::string_view text, size_t begin, size_t end);

}  // namespace litecache::tokenizer::jinja
