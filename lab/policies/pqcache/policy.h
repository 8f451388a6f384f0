// Policy `pqcache`: PQCache: rows chosen by product-quantized keys, and a block
// cache.
#pragma once

#include "kv/api/policy_registry.h"

namespace litecache::lab::pqcache {

kv::Policy MakePolicy();

}  // namespace litecache::lab::pqcache
