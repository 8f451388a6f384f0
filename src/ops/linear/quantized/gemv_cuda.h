// Products with packed blocks (packed_blocks.h), of a few rows and of some more, by kernels that
// read the weights as they are.
#pragma once

#include <span>

#include "device/cuda/cuda_device.h"
#include "ops/linear/linear.h"

namespace litecache::ops::cuda {

// Whether this GPU runs the kernel for few rows: sm_80 or later. (All but the few that have less
// than 99 KiB of shared memory for a block.)
bool QuantizedGemvServes();

// Rows of one launch of either kernel.
inline constexpr int64_t kMaxQuantizedGemvRows = 8;
inline constexpr int64_t kMaxQuantizedGemmRows = 64;

// Arguments as for Linear; bf16 x, 1 to kMaxQuantizedGemvRows rows, up to kMaxGemvParts parts of
// one packed layout. x is rounded, weights are not; sums are f32, in an order that depends on the
// depth only: a row's results are the same bits whatever the other rows and parts. Overlaps the
// kernel before it (overlap.cuh).
void QuantizedGemv(CudaStream& stream, const MatrixView& x, std::span<const LinearPart> parts,
                   Epilogue epilogue);
// gate.y = function(x gate^T, x up^T), of weights of one layout; up.y is unchanged.
void QuantizedGatedGemv(CudaStream& stream, const MatrixView& x, const LinearPart& gate,
                        const LinearPart& up, const GateFunction& function);

// Whether this GPU, sm_90 or later with as much shared memory as an H100, and the alignment of x
// (16 bytes) allow the following.
bool QuantizedGemmServes(const MatrixView& x);
// The same for up to kMaxQuantizedGemmRows rows, with weights rounded to bf16 once for all rows;
// scales of weights of fewer than 8 bits are rounded before (fragments.cuh). The order of
// sums depends on the depth, on the number of rows and on that of all parts' outputs.
void QuantizedGemm(CudaStream& stream, const MatrixView& x, std::span<const LinearPart> parts,
                   Epilogue epilogue);
void QuantizedGatedGemm(CudaStream& stream, const MatrixView& x, const LinearPart& gate,
                        const LinearPart& up, const GateFunction& function);

// For tests: as on a GPU that has at most so many bytes of shared memory for a block.
void LimitSharedMemory(int64_t bytes);

// Whether two formats' weights may be in one launch.
bool SamePackedLayout(const BlockFormat& a, const BlockFormat& b);

}  // namespace litecache::ops::cuda
