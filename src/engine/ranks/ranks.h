// Tensor parallelism in an engine: rank 0 loads the model's part, runs the core, and tells the
// other ranks what it does (leader.h); they load theirs and follow (follower.h).
#pragma once

#include <memory>

#include "engine/load.h"
#include "litecache/engine.h"
#include "parallel/process_group.h"

namespace litecache::engine {

// On rank 0: starts the other ranks, or returns those that have been started. Other ranks do not
// return from here: they load and run what rank 0 tells them until it ends. Throws what
// ProcessGroup::Start() throws.
std::shared_ptr<parallel::ProcessGroup> JoinRanks(int ranks);

// Tells the other ranks to load the same model.
void TellLoad(parallel::ProcessGroup& group, const ModelSource& source,
              const EngineOptions& options);

// The options of one rank: its device, its share of the cores, the host's memory and a number of
// resident heads.
EngineOptions OptionsOfRank(const EngineOptions& options, const parallel::ProcessGroup& group);

}  // namespace litecache::engine
