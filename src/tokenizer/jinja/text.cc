#include "tokenizer/jinja/text.h"

#include <algorithm>
#include <cstring>

#include "base/work_limit.h"
#include "tokenizer/jinja/unicode.h"

namespace litecache::tokenizer::jinja {

namespace {

std::string Reversed(std::string_view text) { return {text.rbegin(), text.rend()}; }

// Replaces each code point by what `map(text, position, &out)` appends, keeping its mark.
template <typename Map>
MarkedString MapCodePoints(const MarkedString& string, Map map) {
  MarkedString result;
  result.Reserve(string.size());
  const std::string& text = string.text();
  std::string mapped;
  for (size_t position = 0; position < text.size();) {
    const size_t begin = position;
    NextCodePoint(text, &position);
    mapped.clear();
    map(text, begin, &mapped);
    result.Append(mapped, string.IsInput(begin));
  }
  result.set_markup(string.markup());
  return result;
}

char32_t CodePointAt(std::string_view text, size_t position) {
  return NextCodePoint(text, &position);
}

bool HasCodePoint(std::string_view set, char32_t c) {
  for (size_t position = 0; position < set.size();) {
    if (NextCodePoint(set, &position) == c) return true;
  }
  return false;
}

}  // namespace

MarkedString Upper(const MarkedString& string) {
  return MapCodePoints(string, [](std::string_view text, size_t at, std::string* out) {
    AppendUpper(CodePointAt(text, at), out);
  });
}

MarkedString Lower(const MarkedString& string) {
  return MapCodePoints(string, [](std::string_view text, size_t at, std::string* out) {
    AppendLower(text, at, out);
  });
}

MarkedString Capitalize(const MarkedString& string) {
  return MapCodePoints(string, [](std::string_view text, size_t at, std::string* out) {
    if (at == 0) {
      AppendTitle(CodePointAt(text, at), out);
    } else {
      AppendLower(text, at, out);
    }
  });
}

MarkedString TitleCase(const MarkedString& string) {
  bool after_cased = false;
  return MapCodePoints(string, [&](std::string_view text, size_t at, std::string* out) {
    const char32_t c = CodePointAt(text, at);
    if (after_cased) {
      AppendLower(text, at, out);
    } else {
      AppendTitle(c, out);
    }
    after_cased = IsCased(c);
  });
}

MarkedString SwapCase(const MarkedString& string) {
  return MapCodePoints(string, [](std::string_view text, size_t at, std::string* out) {
    const char32_t c = CodePointAt(text, at);
    if (IsUpper(c)) {
      AppendLower(text, at, out);
    } else if (IsLower(c)) {
      AppendUpper(c, out);
    } else {
      AppendUtf8(c, out);
    }
  });
}

MarkedString Strip(const MarkedString& string, Side side,
                   const std::optional<std::string_view>& characters) {
  const std::string& text = string.text();
  const auto strips = [&](char32_t c) {
    return characters.has_value() ? HasCodePoint(*characters, c) : IsSpace(c);
  };
  size_t begin = 0, end = text.size();
  while ((static_cast<int>(side) & static_cast<int>(Side::kLeft)) && begin < end) {
    size_t next = begin;
    if (!strips(NextCodePoint(text, &next))) break;
    begin = next;
  }
  while ((static_cast<int>(side) & static_cast<int>(Side::kRight)) && end > begin) {
    size_t start = end - 1;
    while (start > begin && (static_cast<unsigned char>(text[start]) & 0xC0) == 0x80) --start;
    if (!strips(CodePointAt(text, start))) break;
    end = start;
  }
  MarkedString result = string.Sub(begin, end);
  result.set_markup(string.markup());
  return result;
}

MarkedString Replace(Runtime& rt, const MarkedString& string, std::string_view from,
                     const MarkedString& to, int64_t limit) {
  const std::string& text = string.text();
  const size_t matches = from.empty() ? CountCodePoints(text) + 1 : CountOccurrences(text, from);
  const size_t count = limit < 0 ? matches : std::min(matches, static_cast<size_t>(limit));
  size_t grown = 0;
  if (__builtin_mul_overflow(count, to.size(), &grown)) grown = SIZE_MAX / 2;
  rt.ChargeBytes(grown);
  MarkedString result;
  size_t done = 0;
  if (from.empty()) {
    for (size_t i = 0; i < count; ++i) {
      result.Append(to);
      if (done == text.size()) break;
      size_t next = done;
      NextCodePoint(text, &next);
      result.Append(string, done, next);
      done = next;
    }
  } else {
    for (size_t i = 0; i < count; ++i) {
      const size_t match = FindText(text, from, done);
      result.Append(string, done, match);
      result.Append(to);
      done = match + from.size();
    }
  }
  result.Append(string, done, text.size());
  return result;
}

bool HasOnlyUpper(std::string_view text) {
  bool cased = false;
  for (size_t position = 0; position < text.size();) {
    const char32_t c = NextCodePoint(text, &position);
    if (IsLower(c) || IsTitle(c)) return false;
    cased |= IsUpper(c);
  }
  return cased;
}

bool HasOnlyLower(std::string_view text) {
  bool cased = false;
  for (size_t position = 0; position < text.size();) {
    const char32_t c = NextCodePoint(text, &position);
    if (IsUpper(c) || IsTitle(c)) return false;
    cased |= IsLower(c);
  }
  return cased;
}

size_t FindText(std::string_view text, std::string_view part, size_t from) {
  if (from > text.size()) return std::string_view::npos;
  const auto* begin = text.data() + from;
  const auto* found =
      static_cast<const char*>(memmem(begin, text.size() - from, part.data(), part.size()));
  CheckWork(1 + (found == nullptr ? static_cast<int64_t>(text.size() - from) : found - begin) / 64);
  return found == nullptr ? std::string_view::npos : static_cast<size_t>(found - text.data());
}

size_t FindLastText(std::string_view text, std::string_view part) {
  const size_t found = FindText(Reversed(text), Reversed(part));
  return found == std::string_view::npos ? found : text.size() - found - part.size();
}

size_t CountOccurrences(std::string_view text, std::string_view part) {
  if (part.empty()) return CountCodePoints(text) + 1;
  size_t count = 0;
  for (size_t at = FindText(text, part); at != std::string_view::npos;
       at = FindText(text, part, at + part.size())) {
    ++count;
  }
  return count;
}

std::vector<MarkedString> Split(const MarkedString& string, std::string_view separator,
                                int64_t limit, bool from_right) {
  const std::string_view text = string.text();
  std::vector<MarkedString> pieces;
  if (from_right) {
    const std::string backwards = Reversed(text), mark = Reversed(separator);
    size_t done = 0;
    while (limit != 0) {
      const size_t match = FindText(backwards, mark, done);
      if (match == std::string::npos) break;
      pieces.push_back(string.Sub(text.size() - match, text.size() - done));
      done = match + mark.size();
      --limit;
    }
    pieces.push_back(string.Sub(0, text.size() - done));
    std::reverse(pieces.begin(), pieces.end());
    return pieces;
  }
  size_t begin = 0;
  while (limit != 0) {
    const size_t match = FindText(text, separator, begin);
    if (match == std::string_view::npos) break;
    pieces.push_back(string.Sub(begin, match));
    begin = match + separator.size();
    --limit;
  }
  pieces.push_back(string.Sub(begin, text.size()));
  return pieces;
}

std::vector<MarkedString> SplitSpaces(const MarkedString& string, int64_t limit, bool from_right) {
  const std::string_view text = string.text();
  std::vector<MarkedString> pieces;
  if (from_right) {
    size_t end = TrimSpaces(text, 0, text.size());
    while (end > 0) {
      size_t begin = 0;
      if (limit != 0) {
        // The start of the last word: after the last white space before `end`.
        begin = end;
        while (begin > 0) {
          size_t start = begin - 1;
          while (start > 0 && (static_cast<unsigned char>(text[start]) & 0xC0) == 0x80) --start;
          if (IsSpace(CodePointAt(text, start))) break;
          begin = start;
        }
        --limit;
        pieces.push_back(string.Sub(begin, end));
        end = TrimSpaces(text, 0, begin);
      } else {
        pieces.push_back(string.Sub(0, end));
        end = 0;
      }
    }
    std::reverse(pieces.begin(), pieces.end());
    return pieces;
  }
  size_t begin = SkipSpaces(text, 0);
  while (begin < text.size()) {
    size_t end = begin;
    if (limit != 0) {
      while (end < text.size()) {
        size_t next = end;
        if (IsSpace(NextCodePoint(text, &next))) break;
        end = next;
      }
      --limit;
    } else {
      end = text.size();
    }
    pieces.push_back(string.Sub(begin, end));
    begin = SkipSpaces(text, end);
  }
  return pieces;
}

std::vector<MarkedString> SplitLines(const MarkedString& string, bool keep_ends) {
  const std::string_view text = string.text();
  std::vector<MarkedString> lines;
  size_t begin = 0;
  for (size_t position = 0; position < text.size();) {
    const size_t at = position;
    const char32_t c = NextCodePoint(text, &position);
    if (!IsLineBreak(c)) continue;
    if (c == '\r' && position < text.size() && text[position] == '\n') ++position;
    lines.push_back(string.Sub(begin, keep_ends ? position : at));
    begin = position;
  }
  if (begin < text.size()) lines.push_back(string.Sub(begin, text.size()));
  return lines;
}

}  // namespace litecache::tokenizer::jinja
