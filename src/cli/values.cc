#include "cli/values.h"

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

}  // namespace litecache::cli
