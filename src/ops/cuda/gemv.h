// Products of a few rows: bound by reading the weights.
#pragma once

#include <span>

#include "ops/cuda/dense.h"

namespace litecache::ops::cuda {

// Rows one read of the weights serves: a tensor core multiplies 16 at once.
inline constexpr int64_t kMaxGemvRows = 16;
// Up to this many the kernel of gemv_bulk.cu is the fastest, where the GPU has bulk copies.
inline constexpr int64_t kMaxBulkRows = 4;
// Products of one launch.
inline constexpr int kMaxGemvParts = 4;

// Arguments of Linear; bf16 x and weights, 1 to kMaxGemvRows rows, up to kMaxGemvParts parts with
// any number of outputs each. Every sum has a fixed order, which depends on the parts' sizes only,
// one up to kMaxBulkRows rows and one above: a row's results are the same bits whatever the other
// rows.
void Gemv(Stream& stream, const MatrixView& x, std::span<const LinearPart> parts,
          Epilogue epilogue);

}  // namespace litecache::ops::cuda
