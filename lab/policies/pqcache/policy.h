// Policy `pqcache` (PQCache): rows selected with product-quantized keys, and a block cache.
#pragma once

#include "kv/api/policy_registry.h"

namespace litecache::lab::pqcache {

kv::Policy MakePolicy();

}  // namespace litecache::lab::pqcache
