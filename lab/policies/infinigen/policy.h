// Policy `infinigen` (InfiniGen): rows selected a layer ahead with a predicted query.
#pragma once

#include "kv/api/policy_registry.h"

namespace litecache::lab::infinigen {

kv::Policy MakePolicy();

}  // namespace litecache::lab::infinigen
