// Divides a step for EngineOptions::deterministic.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/scheduler.h"

namespace litecache::engine {

// The same rows as `plan` in several steps: decode rows, at most `decode_rows` of them in a step,
// and after them every prompt chunk in a step of its own. Which kernel multiplies a row, and how it
// is attended, then depends on nothing but its own sequence.
std::vector<StepPlan> DividePlan(const StepPlan& plan, int64_t decode_rows);

}  // namespace litecache::engine
