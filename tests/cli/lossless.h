// What `generate` says with policies that lose no row.
#pragma once

#include <string>
#include <vector>

namespace litecache::testing {

// settings: options of runs, "--kv-policy" and its name first. Each gives the tokens of policy full
// for several prompts at once, and says what it moved.
void ExpectTokensOfFull(const std::vector<std::vector<std::string>>& settings);

}  // namespace litecache::testing
