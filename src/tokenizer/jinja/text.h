// Operations of Python's str on marked text, for methods and filters.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "tokenizer/jinja/runtime.h"

namespace litecache::tokenizer::jinja {

MarkedString Upper(const MarkedString& string);
MarkedString Lower(const MarkedString& string);
MarkedString Capitalize(const MarkedString& string);
MarkedString TitleCase(const MarkedString& string);  // str.title()
MarkedString SwapCase(const MarkedString& string);

enum class Side { kLeft = 1, kRight = 2, kBoth = 3 };
// Without `characters`, strips white space.
MarkedString Strip(const MarkedString& string, Side side,
                   const std::optional<std::string_view>& characters);

// At most `limit` replacements; negative: all.
MarkedString Replace(Runtime& rt, const MarkedString& string, std::string_view from,
                     const MarkedString& to, int64_t limit);

// Pieces between separators, with at most `limit` cuts (negative: all), counted from the right if
// requested.
std::vector<MarkedString> Split(const MarkedString& string, std::string_view separator,
                                int64_t limit, bool from_right);
std::vector<MarkedString> SplitSpaces(const MarkedString& string, int64_t limit, bool from_right);
std::vector<MarkedString> SplitLines(const MarkedString& string, bool keep_ends);

// str.isupper and str.islower: at least one cased character, and none of the other case.
bool HasOnlyUpper(std::string_view text);
bool HasOnlyLower(std::string_view text);

// As std::string_view::find and rfind, in time proportional to the sum of the lengths, not their
// product.
size_t FindText(std::string_view text, std::string_view part, size_t from = 0);
size_t FindLastText(std::string_view text, std::string_view part);

size_t CountOccurrences(std::string_view text, std::string_view part);

}  // namespace litecache::tokenizer::jinja
