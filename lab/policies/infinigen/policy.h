// Policy `infinigen`: InfiniGen: rows that a guessed query asks for, chosen a layer
// ahead.
#pragma once

#include "kv/api/policy_registry.h"

namespace litecache::lab::infinigen {

kv::Policy MakePolicy();

}  // namespace litecache::lab::infinigen
