// Values of options as people write them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace litecache::cli {

// Values as people write them, parsed while the command line is: "16k", "48GiB".
struct TokenCount {
  int64_t value = 0;
};
struct ByteCount {
  uint64_t value = 0;
};
// Finds these by argument-dependent lookup: CLI11's hooks for own types.
bool lexical_cast(const std::string& text, TokenCount& count);
bool lexical_cast(const std::string& text, ByteCount& count);

// "512,4k": numbers of tokens, or of anything, above 0. Throws UsageError with the option's name.
std::vector<int64_t> ParseTokenList(const std::string& text, const std::string& name);

}  // namespace litecache::cli
