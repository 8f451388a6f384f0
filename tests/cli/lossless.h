// The output of `generate` with policies that attend every row.
#pragma once

#include <string>
#include <vector>

namespace litecache::testing {

// settings: options of runs, beginning with "--kv-policy" and its name. Each must give the tokens
// of policy full for several prompts at once, and report the bytes it moved.
void ExpectTokensOfFull(const std::vector<std::vector<std::string>>& settings);

}  // namespace litecache::testing
