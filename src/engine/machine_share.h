// What each of several ranks or replicas on this machine has of it.
#pragma once

#include "litecache/engine.h"

namespace litecache::engine {

// The options of number `index` of `count`: its device, and its share of the cores and of the
// host's memory. Throws InvalidArgument as OpenMachine() does.
EngineOptions ShareOfMachine(const EngineOptions& options, int index, int count);

}  // namespace litecache::engine
