// y = x W^T for a few tokens: bound by reading the weights, which happens once.
#pragma once

#include <cstdint>
#include <span>

#include "base/matrix_view.h"
#include "base/thread_pool.h"
#include "ops/linear/linear.h"

namespace litecache::ops::cpu {

// The most tokens that Gemv() takes: 16 for bf16 weights if the CPU has BF16 dot products,
// otherwise 4.
int64_t MaxGemvTokens(DType weight);

// The parts' weights have one dtype; x has at most MaxGemvTokens(dtype) rows.
void Gemv(ThreadPool& pool, const MatrixView& x, std::span<const LinearPart> parts,
          Epilogue epilogue);

// Bytes of scratch that the calling thread keeps for weights of `depth` inputs.
uint64_t GemvScratchBytes(int64_t depth);

}  // namespace litecache::ops::cpu
