// Character classes, case and normal forms, equal to those of the `tokenizers` package.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace litecache::tokenizer {

enum class NormalForm { kNfc, kNfd, kNfkc, kNfkd };

bool IsWhitespace(char32_t c);
bool IsNumeric(char32_t c);
// Includes ASCII symbols.
bool IsPunctuation(char32_t c);
bool IsMark(char32_t c);
// Letters, marks, digits, connectors, joiners.
bool IsWordCharacter(char32_t c);

// Appends the lower-case form of `c`, which can be several characters.
void AppendLower(char32_t c, std::string* out);

// `text` (valid UTF-8) in a normal form.
std::string Normalize(std::string_view text, NormalForm form);

// For regular expressions: copies `text` into *scratch with every character that PCRE2 classifies
// differently replaced by a stand-in of the same length; returns `text` itself if there is none.
std::string_view WithStandIns(std::string_view text, std::string* scratch);

}  // namespace litecache::tokenizer
