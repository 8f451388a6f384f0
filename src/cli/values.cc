#include "cli/values.h"

#include <cstdlib>

#include "base/error.h"
#include "base/units.h"
#include "cli/command.h"

namespace litecache::cli {
namespace {

// False where `parse` throws: whoever reports it (option_errors.h) knows the option's name.
template <class Parse>
bool Read(const Parse& parse) {
  try {
    parse();
    return true;
  } catch (const InvalidArgument&) {
    return false;
  }
}

}  // namespace

bool lexical_cast(const std::string& text, TokenCount& count) {
  return Read([&] { count.value = ParseTokens(text, ""); });
}

bool lexical_cast(const std::string& text, ByteCount& count) {
  return Read([&] { count.value = ParseBytes(text, ""); });
}

bool lexical_cast(const std::string& text, Share& share) {
  const bool percent = !text.empty() && text.back() == '%';
  const std::string number = percent ? text.substr(0, text.size() - 1) : text;
  char* end = nullptr;
  share.value = std::strtod(number.c_str(), &end) / (percent ? 100 : 1);
  return !number.empty() && *end == '\0' && share.value >= 0 && share.value <= 1;
}

std::vector<int64_t> ParseTokenList(const std::string& text, const std::string& name) {
  std::vector<int64_t> values;
  for (const auto& word : CLI::detail::split(text, ',')) {
    values.push_back(ParseTokens(word, name));
    if (values.back() < 1) throw UsageError("{}: '{}' is not above 0", name, word);
  }
  if (values.empty()) throw UsageError("{}: the list is empty", name);
  return values;
}

}  // namespace litecache::cli
