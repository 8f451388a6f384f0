// Blocked y = x W^T on the micro-kernels, for more tokens than a GEMV serves well.
#pragma once

#include "base/matrix_view.h"
#include "base/thread_pool.h"
#include "ops/linear.h"

namespace litecache::ops::cpu {

void Gemm(ThreadPool& pool, const MatrixView& x, const MatrixView& weight, const float* bias,
          const MatrixView& y, Epilogue epilogue);

}  // namespace litecache::ops::cpu
