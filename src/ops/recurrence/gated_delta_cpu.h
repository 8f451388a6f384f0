// ops/recurrence/gated_delta.h on the CPU: the same contract, arguments already checked.
#pragma once

#include <span>

#include "base/matrix_view.h"
#include "base/thread_pool.h"
#include "ops/recurrence/gated_delta.h"

namespace litecache::ops::cpu {

void GatedDelta(ThreadPool& pool, const GatedDeltaShape& shape, const GatedDeltaWeights& weights,
                std::span<const GatedDeltaSequence> sequences, const GatedDeltaInputs& in,
                const MatrixView& out);

}  // namespace litecache::ops::cpu
