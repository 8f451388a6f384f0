#include "tokenizer/jinja/string_literal.h"

#include <charconv>
#include <cstddef>

#include "tokenizer/jinja/unicode.h"

namespace litecache::tokenizer::jinja {

namespace {

// The value of exactly `count` hexadecimal digits at `at`, or -1.
int64_t HexValue(std::string_view text, size_t at, size_t count) {
  if (at + count > text.size()) return -1;
  uint32_t value = 0;
  const char* begin = text.data() + at;
  const auto result = std::from_chars(begin, begin + count, value, 16);
  return result.ptr == begin + count ? static_cast<int64_t>(value) : -1;
}

}  // namespace

std::string NormalizeNewlines(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\r') {
      result.push_back(text[i]);
      continue;
    }
    result.push_back('\n');
    if (i + 1 < text.size() && text[i + 1] == '\n') ++i;
  }
  return result;
}

std::string Unescape(std::string_view body, std::string* error) {
  std::string result;
  for (size_t i = 0; i < body.size(); ++i) {
    if (body[i] != '\\' || i + 1 == body.size()) {
      result.push_back(body[i]);
      continue;
    }
    const char c = body[++i];
    constexpr std::string_view kFrom = "abfnrtv\\'\"";
    constexpr std::string_view kTo = "\a\b\f\n\r\t\v\\'\"";
    if (const size_t simple = kFrom.find(c); simple != std::string_view::npos) {
      result.push_back(kTo[simple]);
    } else if (c == '\n') {
      // A backslash at the end of a line joins the lines.
    } else if (c >= '0' && c <= '7') {
      uint32_t value = 0;
      size_t end = i;
      while (end < body.size() && end < i + 3 && body[end] >= '0' && body[end] <= '7') {
        value = value * 8 + static_cast<uint32_t>(body[end++] - '0');
      }
      AppendUtf8(value, &result);
      i = end - 1;
    } else if (c == 'x' || c == 'u' || c == 'U') {
      const size_t count = c == 'x' ? 2 : c == 'u' ? 4 : 8;
      const int64_t value = HexValue(body, i + 1, count);
      if (value < 0 || value > 0x10FFFF) {
        *error = std::string("malformed \\") + c + " escape in a string";
        return {};
      }
      if (value >= 0xD800 && value < 0xE000) {
        *error = "surrogate escapes in a string are not supported";
        return {};
      }
      AppendUtf8(static_cast<char32_t>(value), &result);
      i += count;
    } else if (c == 'N') {
      *error = "\\N{...} escapes in a string are not supported";
      return {};
    } else {
      result.push_back('\\');
      result.push_back(c);
    }
  }
  return result;
}

}  // namespace litecache::tokenizer::jinja
