// Text that a file or a client may have brought, for a terminal or a log.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace litecache {

// Writes control characters as \x1b, but for newlines and tabs, so that the text cannot command a
// terminal. What exceeds `longest` bytes is cut off, between characters, and ends in "...".
std::string Printable(std::string_view text, size_t longest = 2000);

}  // namespace litecache
