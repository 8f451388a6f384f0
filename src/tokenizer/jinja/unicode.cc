#include "tokenizer/jinja/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>

namespace litecache::tokenizer::jinja {

namespace {

struct Expansion {
  char32_t c;
  std::array<char32_t, 3> upper;
};

// Code points whose upper case is several code points (Unicode SpecialCasing.txt, the unconditional
// entries); utf8proc has only the one-to-one mappings. The Greek letters with iota subscript,
// U+1F80 to U+1FFC, follow a pattern and are computed.
constexpr Expansion kUpperExpansions[] = {
    {0x00DF, {0x0053, 0x0053}},         {0x0149, {0x02BC, 0x004E}},
    {0x01F0, {0x004A, 0x030C}},         {0x0390, {0x0399, 0x0308, 0x0301}},
    {0x03B0, {0x03A5, 0x0308, 0x0301}}, {0x0587, {0x0535, 0x0552}},
    {0x1E96, {0x0048, 0x0331}},         {0x1E97, {0x0054, 0x0308}},
    {0x1E98, {0x0057, 0x030A}},         {0x1E99, {0x0059, 0x030A}},
    {0x1E9A, {0x0041, 0x02BE}},         {0x1F50, {0x03A5, 0x0313}},
    {0x1F52, {0x03A5, 0x0313, 0x0300}}, {0x1F54, {0x03A5, 0x0313, 0x0301}},
    {0x1F56, {0x03A5, 0x0313, 0x0342}}, {0x1FB2, {0x1FBA, 0x0399}},
    {0x1FB3, {0x0391, 0x0399}},         {0x1FB4, {0x0386, 0x0399}},
    {0x1FB6, {0x0391, 0x0342}},         {0x1FB7, {0x0391, 0x0342, 0x0399}},
    {0x1FBC, {0x0391, 0x0399}},         {0x1FC2, {0x1FCA, 0x0399}},
    {0x1FC3, {0x0397, 0x0399}},         {0x1FC4, {0x0389, 0x0399}},
    {0x1FC6, {0x0397, 0x0342}},         {0x1FC7, {0x0397, 0x0342, 0x0399}},
    {0x1FCC, {0x0397, 0x0399}},         {0x1FD2, {0x0399, 0x0308, 0x0300}},
    {0x1FD3, {0x0399, 0x0308, 0x0301}}, {0x1FD6, {0x0399, 0x0342}},
    {0x1FD7, {0x0399, 0x0308, 0x0342}}, {0x1FE2, {0x03A5, 0x0308, 0x0300}},
    {0x1FE3, {0x03A5, 0x0308, 0x0301}}, {0x1FE4, {0x03A1, 0x0313}},
    {0x1FE6, {0x03A5, 0x0342}},         {0x1FE7, {0x03A5, 0x0308, 0x0342}},
    {0x1FF2, {0x1FFA, 0x0399}},         {0x1FF3, {0x03A9, 0x0399}},
    {0x1FF4, {0x038F, 0x0399}},         {0x1FF6, {0x03A9, 0x0342}},
    {0x1FF7, {0x03A9, 0x0342, 0x0399}}, {0x1FFC, {0x03A9, 0x0399}},
    {0xFB00, {0x0046, 0x0046}},         {0xFB01, {0x0046, 0x0049}},
    {0xFB02, {0x0046, 0x004C}},         {0xFB03, {0x0046, 0x0046, 0x0049}},
    {0xFB04, {0x0046, 0x0046, 0x004C}}, {0xFB05, {0x0053, 0x0054}},
    {0xFB06, {0x0053, 0x0054}},         {0xFB13, {0x0544, 0x0546}},
    {0xFB14, {0x0544, 0x0535}},         {0xFB15, {0x0544, 0x053B}},
    {0xFB16, {0x054E, 0x0546}},         {0xFB17, {0x0544, 0x053D}},
};

const Expansion* FindExpansion(char32_t c) {
  auto found = std::lower_bound(std::begin(kUpperExpansions), std::end(kUpperExpansions), c,
                                [](const Expansion& e, char32_t value) { return e.c < value; });
  return found != std::end(kUpperExpansions) && found->c == c ? found : nullptr;
}

utf8proc_category_t Category(char32_t c) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(c));
}

// The property Cased: letters with two cases, and other characters with a case mapping (Roman
// numerals).
bool HasCase(char32_t c) {
  const auto category = Category(c);
  return category == UTF8PROC_CATEGORY_LU || category == UTF8PROC_CATEGORY_LL || IsCased(c) ||
         c == 0xAA || c == 0xBA;
}

// Characters that the final-sigma rule skips: marks, modifiers and apostrophe-like punctuation.
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
  constexpr char32_t kMidLetters[] = {0x27,   0x2E,   0x3A,   0xB7,   0x387,  0x55F,
                                      0x5F4,  0x2018, 0x2019, 0x2024, 0x2027, 0xFE13,
                                      0xFE52, 0xFE55, 0xFF07, 0xFF0E, 0xFF1A};
  return std::find(std::begin(kMidLetters), std::end(kMidLetters), c) != std::end(kMidLetters);
}

bool IsFinalSigma(std::string_view text, size_t position) {
  size_t before = position;
  bool cased_before = false;
  while (before > 0) {
    before = PreviousCharacter(text, before);
    size_t p = before;
    const char32_t c = NextCodePoint(text, &p);
    if (IsCaseIgnorable(c)) continue;
    cased_before = HasCase(c);
    break;
  }
  if (!cased_before) return false;
  size_t after = position;
  NextCodePoint(text, &after);
  while (after < text.size()) {
    const char32_t c = NextCodePoint(text, &after);
    if (!IsCaseIgnorable(c)) return !HasCase(c);
  }
  return true;
}

}  // namespace

size_t CountCodePoints(std::string_view text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  }));
}

size_t ByteOffset(std::string_view text, size_t index) {
  size_t position = 0;
  while (index > 0 && position < text.size()) {
    ++position;
    while (position < text.size() && (static_cast<unsigned char>(text[position]) & 0xC0) == 0x80) {
      ++position;
    }
    --index;
  }
  return position;
}

std::vector<size_t> CodePointOffsets(std::string_view text) {
  std::vector<size_t> offsets;
  for (size_t i = 0; i < text.size(); ++i) {
    if ((static_cast<unsigned char>(text[i]) & 0xC0) != 0x80) offsets.push_back(i);
  }
  offsets.push_back(text.size());
  return offsets;
}

bool IsSpace(char32_t c) {
  if (c < 0x80) return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20);
  return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 ||
         c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

bool IsLineBreak(char32_t c) {
  return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 ||
         c == 0x2029;
}

bool IsPrintable(char32_t c) {
  if (c < 0x7F) return c >= 0x20;
  switch (Category(c)) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZS:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
      return false;
    default:
      return true;
  }
}

bool IsAlpha(char32_t c) {
  const auto category = Category(c);
  return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
}
bool IsDigit(char32_t c) { return Category(c) == UTF8PROC_CATEGORY_ND; }
bool IsNumeric(char32_t c) {
  const auto category = Category(c);
  return category == UTF8PROC_CATEGORY_ND || category == UTF8PROC_CATEGORY_NL ||
         category == UTF8PROC_CATEGORY_NO;
}
bool IsUpper(char32_t c) { return utf8proc_isupper(static_cast<utf8proc_int32_t>(c)); }
bool IsLower(char32_t c) { return utf8proc_islower(static_cast<utf8proc_int32_t>(c)); }
bool IsTitle(char32_t c) { return Category(c) == UTF8PROC_CATEGORY_LT; }
bool IsCased(char32_t c) { return IsUpper(c) || IsLower(c) || IsTitle(c); }
bool IsWordCharacter(char32_t c) { return c == '_' || IsAlpha(c) || IsNumeric(c); }

void AppendUpper(char32_t c, std::string* out) {
  if (c < 0x80) {
    out->push_back(static_cast<char>(c >= 'a' && c <= 'z' ? c - 32 : c));
    return;
  }
  if (c >= 0x1F80 && c <= 0x1FAF) {
    // Letter with iota subscript: the capital without it, followed by a capital iota.
    const char32_t base = c < 0x1F90 ? 0x1F08 : c < 0x1FA0 ? 0x1F28 : 0x1F68;
    AppendUtf8(base + (c & 7), out);
    AppendUtf8(0x0399, out);
    return;
  }
  if (const Expansion* expansion = FindExpansion(c)) {
    for (const char32_t part : expansion->upper) {
      if (part != 0) AppendUtf8(part, out);
    }
    return;
  }
  AppendUtf8(static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(c))), out);
}

void AppendTitle(char32_t c, std::string* out) {
  const bool iota = (c >= 0x1F80 && c <= 0x1FAF) || c == 0x1FB3 || c == 0x1FBC || c == 0x1FC3 ||
                    c == 0x1FCC || c == 0x1FF3 || c == 0x1FFC;
  const Expansion* expansion = iota ? nullptr : FindExpansion(c);
  if (expansion == nullptr) {
    AppendUtf8(static_cast<char32_t>(utf8proc_totitle(static_cast<utf8proc_int32_t>(c))), out);
    return;
  }
  // Only the first capital stays a capital; an iota subscript (U+0345) is kept.
  bool first = true;
  for (const char32_t part : expansion->upper) {
    if (part == 0) break;
    if (first) {
      AppendUtf8(part, out);
    } else if (c == 0x0149) {  // an apostrophe, so the letter after it is the first
      AppendUtf8(part, out);
    } else if (part == 0x0399 && c >= 0x1F00) {
      AppendUtf8(0x0345, out);
    } else {
      AppendUtf8(static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(part))), out);
    }
    first = false;
  }
}

void AppendLower(std::string_view text, size_t position, std::string* out) {
  size_t next = position;
  const char32_t c = NextCodePoint(text, &next);
  if (c == 0x3A3) {
    AppendUtf8(IsFinalSigma(text, position) ? 0x3C2 : 0x3C3, out);
  } else if (c == 0x130) {
    AppendUtf8('i', out);
    AppendUtf8(0x307, out);
  } else {
    AppendUtf8(static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))), out);
  }
}

size_t SkipSpaces(std::string_view text, size_t begin) {
  while (begin < text.size()) {
    size_t next = begin;
    if (!IsSpace(NextCodePoint(text, &next))) break;
    begin = next;
  }
  return begin;
}

size_t TrimSpaces(std::string_view text, size_t begin, size_t end) {
  while (end > begin) {
    const size_t start = PreviousCharacter(text, end);
    size_t position = start;
    if (!IsSpace(NextCodePoint(text, &position))) break;
    end = start;
  }
  return end;
}

}  // namespace litecache::tokenizer::jinja
