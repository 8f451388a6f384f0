// Which plans' caches can play a trace: those of policies that implement ReplaysTrace, and policy
// litecache, whose results are overridden (kv/litecache/result_override.h).
#pragma once

#include <memory>
#include <string>

#include "kv/cache_plan.h"
#include "lab/trace/trace.h"

namespace litecache::kv {

// What a CachePlan may be beside (dynamic_cast): policies that select rows at every step.
class ReplaysTrace {
 public:
  virtual ~ReplaysTrace() = default;
  // Caches created from here on look for what the trace's model looked for (lab/trace/replay.h,
  // lab/forced/forced_selection.h). Lookups and selections do their work, and their results are
  // replaced.
  virtual void Replay(std::shared_ptr<const Trace> trace) = 0;
};

// Has the plan replay it. False where its policy selects nothing.
bool ReplayTrace(CachePlan* plan, std::shared_ptr<const Trace> trace);

}  // namespace litecache::kv
