// ops/reuse/qsac_lookup.h on the CPU: the same contract, arguments already checked.
#pragma once

#include <cstdint>
#include <span>

#include "base/thread_pool.h"
#include "ops/reuse/qsac_lookup.h"

namespace litecache::ops::cpu {

void QsacLookup(ThreadPool& pool, int64_t group, int64_t head_dim, Aggregation aggregation,
                std::span<LookupWork> work);

}  // namespace litecache::ops::cpu
