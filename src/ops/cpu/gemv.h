// y = x W^T for a few tokens: bound by reading the weights, which happens once.
#pragma once

#include "base/matrix_view.h"
#include "base/thread_pool.h"
#include "ops/linear.h"

namespace litecache::ops::cpu {

inline constexpr int64_t kMaxGemvTokens = 4;

// x has at most kMaxGemvTokens rows.
void Gemv(ThreadPool& pool, const MatrixView& x, const MatrixView& weight, const float* bias,
          const MatrixView& y, Epilogue epilogue);

}  // namespace litecache::ops::cpu
