// ops/dense/norm.h on the CPU: the same contract, arguments already checked.
#pragma once

#include <cstdint>

#include "base/matrix_view.h"
#include "base/thread_pool.h"

namespace litecache::ops::cpu {

void RmsNorm(ThreadPool& pool, const MatrixView& x, const float* weight, float eps, int64_t groups,
             const MatrixView& y);
void LayerNorm(ThreadPool& pool, const MatrixView& x, const float* weight, const float* bias,
               float eps, const MatrixView& y);

}  // namespace litecache::ops::cpu
