// Matrix products through oneDNN, for CPUs with AMX tiles.
#pragma once

#include "base/matrix_view.h"
#include "base/thread_pool.h"
#include "ops/linear/linear.h"

namespace litecache::ops::cpu {

// Whether the product should go through oneDNN: bf16 weights, tiles in the CPU, and enough tokens
// to fill them. Our own kernel runs at 90% of what vdpbf16ps can do (lab/notes/cpu.md), so
// without AMX there is nothing to gain; AMX has eight times that rate.
bool OneDnnIsFaster(const MatrixView& x, const MatrixView& weight);

// Same contract as Gemm; weight is bf16. oneDNN runs single-threaded on slices, on the pool's
// threads: its own OpenMP threads would compete with the pool's.
void GemmOneDnn(ThreadPool& pool, const MatrixView& x, const MatrixView& weight, const float* bias,
                const MatrixView& y, Epilogue epilogue);

// Bytes of converted x that the calling thread keeps; 0 where no product goes through oneDNN.
uint64_t OneDnnScratchBytes(int64_t rows, int64_t depth);

}  // namespace litecache::ops::cpu
