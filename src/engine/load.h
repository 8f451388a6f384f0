// Loads what an engine is built from: the machine, the model's files and its weights.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "engine/engine_plan.h"
#include "litecache/engine.h"

namespace litecache::engine {

struct ModelSource {
  std::string model;             // what Engine::Load takes, or a shape's name
  std::optional<uint64_t> seed;  // of a shape's random weights; none: `model` has files
};

// The memory that an engine takes by default: 90% of what is free on the host at present.
uint64_t DefaultMemory();

// Throws what Engine::Load and Engine::Random throw. group: null without tensor parallelism; then
// the options are this rank's (OptionsOfRank), and the parts are of its part of the model.
Parts LoadParts(const ModelSource& source, const EngineOptions& options,
                std::shared_ptr<parallel::ProcessGroup> group);

}  // namespace litecache::engine
