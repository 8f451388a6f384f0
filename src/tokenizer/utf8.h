// UTF-8: decoding, encoding, and the repair of invalid input.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace litecache::tokenizer {

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";  // U+FFFD

// The code point at text[*offset]; advances *offset past it. `text` must be valid UTF-8 and
// *offset < text.size() at a character's start.
inline char32_t NextCodePoint(std::string_view text, size_t* offset) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[*offset + i]); };
  const char32_t lead = byte(0);
  if (lead < 0x80) {
    *offset += 1;
    return lead;
  }
  if (lead < 0xE0) {
    const char32_t value = (lead & 0x1F) << 6 | (byte(1) & 0x3F);
    *offset += 2;
    return value;
  }
  if (lead < 0xF0) {
    const char32_t value = (lead & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F);
    *offset += 3;
    return value;
  }
  const char32_t value =
      (lead & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 | (byte(3) & 0x3F);
  *offset += 4;
  return value;
}

// Number of bytes of the character that starts with `lead` in valid UTF-8.
inline size_t SequenceLength(unsigned char lead) {
  return lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
}

// Start of the character that ends at text[end - 1]; end > 0, valid UTF-8.
inline size_t PreviousCharacter(std::string_view text, size_t end) {
  do {
    --end;
  } while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80);
  return end;
}

// Appends `code_point` (a Unicode scalar value).
void AppendUtf8(char32_t code_point, std::string* out);

// Whether the whole text is well-formed UTF-8 (no surrogates, no overlong forms).
bool IsValidUtf8(std::string_view text);

// Replaces every maximal ill-formed subsequence by U+FFFD, as Unicode recommends and as Python's
// bytes.decode("utf-8", errors="replace") does.
std::string RepairUtf8(std::string_view bytes);

// Decodes a byte stream that arrives in arbitrary pieces; the concatenation of what Add() and
// Flush() return equals RepairUtf8() of the concatenated bytes.
class Utf8Repairer {
 public:
  // Appends to *out all characters that `bytes` completes.
  void Add(std::string_view bytes, std::string* out);
  // Appends U+FFFD for an incomplete character at the end of the stream, and resets the state.
  void Flush(std::string* out);

 private:
  std::string pending_;
};

}  // namespace litecache::tokenizer
