// The byte-level alphabet: one printable character for each of the 256 bytes, as defined by GPT-2.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "tokenizer/utf8.h"

namespace litecache::tokenizer {

inline constexpr char32_t kByteAlphabetEnd = 0x144;  // all its characters are below this

// The code point of each byte: the byte itself if it is printable Latin-1, else from U+0100 on.
constexpr std::array<char32_t, 256> MakeByteAlphabet() {
  std::array<char32_t, 256> alphabet{};
  char32_t next = 0x100;
  for (int b = 0; b < 256; ++b) {
    const bool printable = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
    alphabet[b] = printable ? static_cast<char32_t>(b) : next++;
  }
  return alphabet;
}
inline constexpr std::array<char32_t, 256> kByteAlphabet = MakeByteAlphabet();

// The byte of each code point below kByteAlphabetEnd, or -1.
constexpr std::array<int16_t, kByteAlphabetEnd> MakeByteAlphabetInverse() {
  std::array<int16_t, kByteAlphabetEnd> inverse{};
  for (int16_t& byte : inverse) byte = -1;
  for (int b = 0; b < 256; ++b) inverse[kByteAlphabet[b]] = static_cast<int16_t>(b);
  return inverse;
}
inline constexpr std::array<int16_t, kByteAlphabetEnd> kByteOfCharacter = MakeByteAlphabetInverse();

inline void AppendByteCharacter(unsigned char byte, std::string* out) {
  AppendUtf8(kByteAlphabet[byte], out);
}

}  // namespace litecache::tokenizer
