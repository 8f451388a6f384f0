// White space as haystacks are cut at.
#pragma once

#include <cstddef>
#include <string_view>

namespace litecache::eval {

// Bytes of the white space character at `at` (Unicode White_Space and the ASCII separators 0x1c to
// 0x1f, as \s of Python's re), 0 when there is none. `text` is UTF-8.
size_t SpaceLength(std::string_view text, size_t at);

}  // namespace litecache::eval
