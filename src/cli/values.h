// Values of options as people write them.
#pragma once

#include <cstdint>
#include <string>

namespace litecache::cli {

// Values as people write them, parsed while the command line is: "16k", "48GiB", "50%" or "0.5".
struct TokenCount {
  int64_t value = 0;
};
struct ByteCount {
  uint64_t value = 0;
};
struct Share {
  double value = 0;
};
// Finds these by argument-dependent lookup: CLI11's hooks for own types.
bool lexical_cast(const std::string& text, TokenCount& count);
bool lexical_cast(const std::string& text, ByteCount& count);
bool lexical_cast(const std::string& text, Share& share);

}  // namespace litecache::cli
