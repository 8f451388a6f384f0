// y = x W^T with quantized weights: integer dot products with x in 16 bits.
#pragma once

#include <cstdint>
#include <span>

#include "base/thread_pool.h"
#include "ops/linear/linear.h"

namespace litecache::ops::cpu {

// Whether the active instructions have kernels of integers. If not, blocks are widened to f32 for
// Gemm().
bool HasQuantizedKernels();

// The most rows of x for which weights are unpacked into registers. A row's result has the same
// bits in all such numbers of rows; in larger numbers its sums are added in another order, which is
// again the same for all of them.
int64_t MaxQuantizedGemvTokens();

// All weights have dtype kBlocks. One pass of the pool multiplies all parts.
void QuantizedLinear(ThreadPool& pool, const MatrixView& x, std::span<const LinearPart> parts,
                     Epilogue epilogue);

// Bytes of the calling thread's x and of all threads' unpacked weights and sums.
uint64_t QuantizedScratchBytes(int64_t rows, int64_t depth, int threads);

}  // namespace litecache::ops::cpu
