// ops/dense/rope.h on the CPU: the same contract, arguments already checked.
#pragma once

#include <cstdint>
#include <span>

#include "base/matrix_view.h"
#include "base/thread_pool.h"
#include "ops/dense/rope.h"

namespace litecache::ops::cpu {

void RopeRotations(ThreadPool& pool, std::span<const int32_t> positions,
                   std::span<const float> inv_freq, float scale, const RopeGrowth& growth,
                   const MatrixView& rotations);
void Rope(ThreadPool& pool, const MatrixView& x, const MatrixView& rotations, int64_t heads,
          RopePairs pairs);

}  // namespace litecache::ops::cpu
