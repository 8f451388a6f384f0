// ops/linear/linear.h on the CPU: the same contract, arguments already checked.
#pragma once

#include <cstdint>
#include <span>

#include "base/matrix_view.h"
#include "base/thread_pool.h"
#include "ops/linear/linear.h"

namespace litecache::ops::cpu {

void Linear(ThreadPool& pool, const MatrixView& x, std::span<const LinearPart> parts,
            Epilogue epilogue);
int64_t BatchInvariantRows(DType weight);
uint64_t LinearScratchBytes(int64_t rows, int64_t depth, int threads);

}  // namespace litecache::ops::cpu
