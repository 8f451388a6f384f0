// Bytes and what they are for.
#pragma once

#include <cstdint>
#include <string_view>

namespace litecache {

struct NamedBytes {
  std::string_view name;  // a literal
  uint64_t bytes = 0;
};

}  // namespace litecache
