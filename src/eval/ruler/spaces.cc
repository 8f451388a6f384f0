#include "eval/ruler/spaces.h"

#include <cstdint>

namespace litecache::eval {

size_t SpaceLength(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) {
    return i < text.size() ? static_cast<uint8_t>(text[i]) : uint8_t{0};
  };
  const uint8_t a = byte(at);
  if (a < 0x80) return a == ' ' || (a >= 0x09 && a <= 0x0d) || (a >= 0x1c && a <= 0x1f) ? 1 : 0;
  const uint8_t b = byte(at + 1);
  if (a == 0xc2) return b == 0x85 || b == 0xa0 ? 2 : 0;
  const uint8_t c = byte(at + 2);
  const bool space = (a == 0xe1 && b == 0x9a && c == 0x80) ||
                     (a == 0xe2 && b == 0x80 &&
                      ((c >= 0x80 && c <= 0x8a) || c == 0xa8 || c == 0xa9 || c == 0xaf)) ||
                     (a == 0xe2 && b == 0x81 && c == 0x9f) || (a == 0xe3 && b == 0x80 && c == 0x80);
  return space ? 3 : 0;
}

}  // namespace litecache::eval
