// Data parallelism: several engines with the same model, which share the requests.
#pragma once

#include <functional>
#include <memory>

#include "litecache/engine.h"

namespace litecache::engine {

// Loads options.data_parallel engines, at the same time, each with its share of the machine. load:
// makes one of them. Throws what it throws.
std::unique_ptr<Engine> LoadReplicas(
    const EngineOptions& options,
    const std::function<std::unique_ptr<Engine>(const EngineOptions& options)>& load);

}  // namespace litecache::engine
