#include "cli/values.h"

#include <cstdlib>

#include "base/error.h"
#include "base/units.h"

namespace litecache::cli {

bool lexical_cast(const std::string& text, TokenCount& count) {
  count.value = ParseTokens(text, "number of tokens");
  return true;
}

bool lexical_cast(const std::string& text, ByteCount& count) {
  count.value = ParseBytes(text, "size");
  return true;
}

bool lexical_cast(const std::string& text, Share& share) {
  const bool percent = !text.empty() && text.back() == '%';
  const std::string number = percent ? text.substr(0, text.size() - 1) : text;
  char* end = nullptr;
  share.value = std::strtod(number.c_str(), &end) / (percent ? 100 : 1);
  if (number.empty() || *end != '\0' || !(share.value >= 0 && share.value <= 1)) {
    throw InvalidArgument("'{}' is not a share: 0% to 100%, or 0 to 1", text);
  }
  return true;
}

}  // namespace litecache::cli
