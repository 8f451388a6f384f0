#include "tokenizer/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <bitset>
#include <cstdlib>
#include <memory>
#include <new>

#include "base/error.h"
#include "tokenizer/unicode_tables.h"
#include "tokenizer/utf8.h"

namespace litecache::tokenizer {
namespace {

// Whether any range overlaps a block of 256 code points: this bit rules out nearly all characters
// of real text. (0x1101 blocks, because tables may close with U+110000, which is not a code point.)
template <typename Range>
std::bitset<0x1101> TouchedBlocks(std::span<const Range> ranges) {
  std::bitset<0x1101> blocks;
  for (const Range& range : ranges) {
    for (char32_t block = range.first >> 8; block <= range.last >> 8; ++block) blocks.set(block);
  }
  return blocks;
}

template <typename Range>
const Range* Find(std::span<const Range> ranges, char32_t c) {
  const auto it = std::upper_bound(ranges.begin(), ranges.end(), c,
                                   [](char32_t value, const Range& r) { return value < r.first; });
  if (it == ranges.begin() || (it - 1)->last < c) return nullptr;
  return &*(it - 1);
}

char32_t StandIn(char32_t c) {
  static const std::bitset<0x1101> blocks = TouchedBlocks(StandInRanges());
  if (!blocks[c >> 8]) return c;
  const StandInRange* range = Find(StandInRanges(), c);
  return range == nullptr ? c : range->stand_in;
}

// The Hangul code point from which trailing consonants are counted. utf8proc 2.8 composes it as if
// it were the empty trailing consonant, so it would disappear.
constexpr char32_t kBeforeTrailingConsonants = 0x11A7;

bool IsInert(char32_t c) {
  static const std::bitset<0x1101> blocks = TouchedBlocks(NormalizationInertRanges());
  return c == kBeforeTrailingConsonants ||
         (blocks[c >> 8] && Find(NormalizationInertRanges(), c) != nullptr);
}

// A class of characters: utf8proc's classification, with exceptions where the package's differs.
class Exceptions {
 public:
  explicit Exceptions(std::span<const CodePointRange> ranges)
      : ranges_(ranges), blocks_(TouchedBlocks(ranges)) {}
  bool Apply(char32_t c, bool ours) const {
    return ours != (blocks_[c >> 8] && Find(ranges_, c) != nullptr);
  }

 private:
  std::span<const CodePointRange> ranges_;
  std::bitset<0x1101> blocks_;
};

utf8proc_category_t Category(char32_t c) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(c));
}

void AppendNormalized(std::string_view text, NormalForm form, std::string* out) {
  if (text.empty()) return;
  int options = UTF8PROC_STABLE;
  options |=
      form == NormalForm::kNfc || form == NormalForm::kNfkc ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE;
  if (form == NormalForm::kNfkc || form == NormalForm::kNfkd) options |= UTF8PROC_COMPAT;
  utf8proc_uint8_t* mapped = nullptr;
  const utf8proc_ssize_t size = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                             static_cast<utf8proc_ssize_t>(text.size()), &mapped,
                                             static_cast<utf8proc_option_t>(options));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(mapped, &std::free);
  if (size == UTF8PROC_ERROR_NOMEM) throw std::bad_alloc();
  LC_CHECK(size >= 0, "utf8proc: {}", utf8proc_errmsg(size));
  out->append(reinterpret_cast<const char*>(mapped), static_cast<size_t>(size));
}

bool IsAscii(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return static_cast<signed char>(c) >= 0; });
}

}  // namespace

bool IsWhitespace(char32_t c) {
  if (c < 0x80) return c == ' ' || (c >= 9 && c <= 13);
  static const Exceptions exceptions(WhitespaceExceptions());
  const utf8proc_category_t category = Category(c);
  return exceptions.Apply(
      c, (category >= UTF8PROC_CATEGORY_ZS && category <= UTF8PROC_CATEGORY_ZP) || c == 0x85);
}

bool IsNumeric(char32_t c) {
  static const Exceptions exceptions(NumericExceptions());
  const utf8proc_category_t category = Category(c);
  return exceptions.Apply(c, category >= UTF8PROC_CATEGORY_ND && category <= UTF8PROC_CATEGORY_NO);
}

bool IsPunctuation(char32_t c) {
  static const Exceptions exceptions(PunctuationExceptions());
  const utf8proc_category_t category = Category(c);
  const bool ascii_symbol = c < 0x80 && std::string_view("$+<=>^`|~").find(static_cast<char>(c)) !=
                                            std::string_view::npos;
  return exceptions.Apply(
      c, ascii_symbol || (category >= UTF8PROC_CATEGORY_PC && category <= UTF8PROC_CATEGORY_PO));
}

bool IsMark(char32_t c) {
  static const Exceptions exceptions(MarkExceptions());
  const utf8proc_category_t category = Category(c);
  return exceptions.Apply(c, category >= UTF8PROC_CATEGORY_MN && category <= UTF8PROC_CATEGORY_ME);
}

bool IsWordCharacter(char32_t c) {
  static const Exceptions exceptions(WordExceptions());
  const utf8proc_category_t category = Category(c);
  return exceptions.Apply(c,
                          (category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_NL) ||
                              category == UTF8PROC_CATEGORY_PC);
}

void AppendLower(char32_t c, std::string* out) {
  // The only character whose lower-case form has two characters.
  if (c == 0x130) {
    out->append("i\u0307");
    return;
  }
  const auto table = LowerCaseExceptions();
  const auto it = std::lower_bound(table.begin(), table.end(), c,
                                   [](const LowerCase& a, char32_t b) { return a.from < b; });
  AppendUtf8(it != table.end() && it->from == c
                 ? it->to
                 : static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))),
             out);
}

std::string Normalize(std::string_view text, NormalForm form) {
  if (IsAscii(text)) return std::string(text);
  std::string out;
  out.reserve(text.size());
  // An inert character has combining class 0 and takes part in no composition, so the text before
  // it and the text after it are normalized separately.
  size_t begin = 0;
  for (size_t offset = 0; offset < text.size();) {
    const size_t start = offset;
    if (!IsInert(NextCodePoint(text, &offset))) continue;
    AppendNormalized(text.substr(begin, start - begin), form, &out);
    out.append(text.substr(start, offset - start));
    begin = offset;
  }
  AppendNormalized(text.substr(begin), form, &out);
  return out;
}

std::string_view WithStandIns(std::string_view text, std::string* scratch) {
  bool copied = false;
  for (size_t offset = 0; offset < text.size();) {
    if (static_cast<unsigned char>(text[offset]) < 0xE0) {
      ++offset;  // no differing character is shorter than three bytes
      continue;
    }
    const size_t start = offset;
    const char32_t c = NextCodePoint(text, &offset);
    const char32_t stand_in = StandIn(c);
    if (stand_in == c) continue;
    if (!copied) scratch->assign(text);
    copied = true;
    std::string bytes;
    AppendUtf8(stand_in, &bytes);
    LC_CHECK(bytes.size() == offset - start);
    scratch->replace(start, bytes.size(), bytes);
  }
  return copied ? std::string_view(*scratch) : text;
}

}  // namespace litecache::tokenizer
