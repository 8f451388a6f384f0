#include "cli/values.h"

#include "base/error.h"
#include "base/units.h"
#include "cli/command.h"

namespace litecache::cli {
namespace {

// Returns false if `parse` throws: the caller that reports the error (option_errors.h) has the
// option's name.
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
