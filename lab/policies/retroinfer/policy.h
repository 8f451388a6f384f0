// Policy `retroinfer` (RetroInfer): rows in clusters; the best are attended, the next ones
// estimated.
#pragma once

#include "kv/api/policy_registry.h"

namespace litecache::lab::retroinfer {

kv::Policy MakePolicy();

}  // namespace litecache::lab::retroinfer
