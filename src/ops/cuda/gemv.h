// Products of a few rows: bound by reading the weights.
#pragma once

#include <span>

#include "ops/cuda/dense.h"

namespace litecache::ops::cuda {

// Rows one read of the weights serves: a tensor core multiplies 16 at once.
inline constexpr int64_t kMaxGemvRows = 16;
// Products of one launch.
inline constexpr int kMaxGemvParts = 4;

// Arguments of Linear; bf16 x and weights, 1 to kMaxGemvRows rows, up to
// kMaxGemvParts parts with any number of outputs each. Every sum has a fixed order, which
// depends on the parts' sizes only: a row's results are the same bits whatever the other rows.
void Gemv(Stream& stream, const MatrixView& x, std::span<const LinearPart> parts,
          Epilogue epilogue);

}  // namespace litecache::ops::cuda
