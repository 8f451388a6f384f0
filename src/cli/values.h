// Option values in human-readable notation.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace litecache::cli {

// Values such as "16k" and "48GiB", parsed together with the command line.
struct TokenCount {
  int64_t value = 0;
};
struct ByteCount {
  uint64_t value = 0;
};
// CLI11's hooks for custom types, found by argument-dependent lookup.
bool lexical_cast(const std::string& text, TokenCount& count);
bool lexical_cast(const std::string& text, ByteCount& count);

// "512,4k": positive numbers, of tokens or of anything else. Throws a UsageError that names the
// option.
std::vector<int64_t> ParseTokenList(const std::string& text, const std::string& name);

}  // namespace litecache::cli
