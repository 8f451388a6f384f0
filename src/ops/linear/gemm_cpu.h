// Blocked y = x W^T on the micro-kernels, for more tokens than a GEMV handles efficiently.
#pragma once

#include <cstdint>

#include "base/matrix_view.h"
#include "base/thread_pool.h"
#include "ops/linear/linear.h"

namespace litecache::ops::cpu {

void Gemm(ThreadPool& pool, const MatrixView& x, const MatrixView& weight, const float* bias,
          const MatrixView& y, Epilogue epilogue);

// Bytes of the calling thread's panels and of all threads' sums and widened weights.
uint64_t GemmScratchBytes(int64_t rows, int64_t depth, int threads);

}  // namespace litecache::ops::cpu
