// Matrix products through oneDNN, for CPUs with AMX tiles.
#pragma once

#include "base/matrix_view.h"
#include "base/thread_pool.h"
#include "ops/linear/linear.h"

namespace litecache::ops::cpu {

// Whether the product should use oneDNN: bf16 weights, a CPU with AMX tiles, and enough tokens to
// fill them. LiteCache's kernel reaches 90% of the peak of vdpbf16ps (lab/notes/cpu.md), so without
// AMX there is nothing to gain; AMX has eight times that rate.
bool OneDnnIsFaster(const MatrixView& x, const MatrixView& weight);

// As Gemm; weight is bf16. oneDNN runs single-threaded on slices, on the pool's threads: its own
// OpenMP threads would compete with the pool's.
void GemmOneDnn(ThreadPool& pool, const MatrixView& x, const MatrixView& weight, const float* bias,
                const MatrixView& y, Epilogue epilogue);

// Bytes of converted x that the calling thread keeps; 0 if no product uses oneDNN.
uint64_t OneDnnScratchBytes(int64_t rows, int64_t depth);

}  // namespace litecache::ops::cpu
