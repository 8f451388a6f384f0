// The settings of policy `infinigen` at their published defaults, in KvOptions.settings.
#pragma once

#include <cstdint>
#include <span>

#include "litecache/options.h"

namespace litecache {

// InfiniGen: rows selected a layer ahead with partial channels of the skewed query and keys.
struct InfiniGenOptions {
  double partial = 0.2;      // share of the skewed channels kept of keys and queries, in (0, 1]
  double alpha = 4;          // rows with a score above the best one's minus alpha
  double cap = 0.2;          // and at most this share of the context
  int64_t dense_layers = 2;  // first layers that attend every row
};

std::span<const Option<InfiniGenOptions>> InfiniGenOptionTable();

}  // namespace litecache
