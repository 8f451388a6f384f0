// The cache of a model whose layers do not all attend the whole context: a policy's cache for those
// that do, beside one that keeps the windows of the others in device memory.
#pragma once

#include <memory>
#include <string>

#include "kv/cache.h"
#include "kv/windows/layer_parts.h"

namespace litecache::kv {

// whole, window: caches of the two parts, each with the budget that they share; null where the part
// has no layers. Steps and sequences are those of both. Prefixes are not shared: windows hold a
// sequence's last tokens only, whatever the prefix.
std::unique_ptr<Cache> CreateWindowedCache(const Layout& layout, const windows::Parts& parts,
                                           std::string policy, const TierBytes& budget,
                                           std::unique_ptr<Cache> whole,
                                           std::unique_ptr<Cache> window);

}  // namespace litecache::kv
