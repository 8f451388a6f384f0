// The plans whose caches can replay a trace: those of policies that implement ReplaysTrace, and of
// policy litecache, whose results are overridden (kv/litecache/result_override.h).
#pragma once

#include <memory>
#include <string>

#include "kv/cache_plan.h"
#include "lab/namespaces.h"
#include "lab/trace/trace.h"

namespace litecache::lab {

// Optional interface of a CachePlan (dynamic_cast), for policies that select rows at every step.
class ReplaysTrace {
 public:
  virtual ~ReplaysTrace() = default;
  // Caches created afterwards select what the trace's model selected (lab/trace/replay.h,
  // lab/forced/forced_selection.h). Lookups and selections do their work, and then their results
  // are replaced.
  virtual void Replay(std::shared_ptr<const Trace> trace) = 0;
};

// Makes the plan replay it. Returns false if its policy selects nothing.
bool ReplayTrace(CachePlan* plan, std::shared_ptr<const Trace> trace);

}  // namespace litecache::lab
