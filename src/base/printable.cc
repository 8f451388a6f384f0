#include "base/printable.h"

#include <fmt/core.h>

namespace litecache {

std::string Printable(std::string_view text, size_t longest) {
  const bool cut = text.size() > longest;
  if (cut) {
    while (longest > 0 && (static_cast<unsigned char>(text[longest]) & 0xC0) == 0x80) --longest;
    text = text.substr(0, longest);
  }
  std::string result;
  result.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    // U+0080 to U+009F are control characters as well: C2 80 to C2 9F.
    const bool second = byte >= 0x80 && byte < 0xA0 && i > 0 && text[i - 1] == '\xC2';
    if (second) result.pop_back();
    if (second || byte == 0x7F || (byte < ' ' && byte != '\n' && byte != '\t')) {
      result += fmt::format("\\x{:02x}", byte);
    } else {
      result += text[i];
    }
  }
  return cut ? result + "..." : result;
}

}  // namespace litecache
