// ops/rows/move_rows.h on the CPU: the same contract, arguments already checked.
#pragma once

#include <span>

#include "base/thread_pool.h"
#include "ops/rows/move_rows.h"

namespace litecache::ops::cpu {

void MoveRows(ThreadPool& pool, std::span<const MoveWork> work);

}  // namespace litecache::ops::cpu
