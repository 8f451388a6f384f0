// The cache of a model whose layers do not all attend the whole context: a policy's cache for those
// that do, beside caches that keep the windows and the states of the others in device memory.
#pragma once

#include <memory>
#include <string>

#include "kv/cache.h"
#include "kv/mixed/layer_parts.h"

namespace litecache::kv {

// The caches of the parts, each with the budget that they share; null where a part has no layers.
struct PartCaches {
  std::unique_ptr<Cache> whole, window, recurrent;
};

// Steps and sequences are those of all parts. Prefixes are whole sequences: windows hold a
// sequence's last tokens only, whatever the prefix, and a state is that of its last token.
std::unique_ptr<Cache> CreateMixedCache(const Layout& layout, const mixed::Parts& parts,
                                        std::string policy, const TierBytes& budget,
                                        PartCaches caches);

}  // namespace litecache::kv
