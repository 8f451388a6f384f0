// A number of bytes with its purpose.
#pragma once

#include <cstdint>
#include <string_view>

namespace litecache {

struct NamedBytes {
  std::string_view name;  // a string literal
  uint64_t bytes = 0;
};

}  // namespace litecache
