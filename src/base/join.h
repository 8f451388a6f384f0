// Joins lists for messages. Not fmt::join: GCC 12 warns about fmt 9's headers when that is inlined.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>

namespace litecache {

// {"a", "b"} -> "a, b"; elements are anything fmt formats.
template <typename Range>
std::string Join(const Range& range, std::string_view separator = ", ") {
  std::string text;
  bool first = true;
  for (const auto& item : range) {
    if (!first) text += separator;
    first = false;
    text += fmt::format("{}", item);
  }
  return text;
}

}  // namespace litecache
