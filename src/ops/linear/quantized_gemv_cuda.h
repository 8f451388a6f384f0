// Products of a few rows with packed blocks (packed_blocks.h): bound by reading the weights.
#pragma once

#include <span>

#include "device/cuda/cuda_device.h"
#include "ops/linear/linear.h"

namespace litecache::ops::cuda {

// Whether this GPU runs the kernels: sm_90 or later with as much shared memory as an H100.
bool QuantizedGemvServes();

// Arguments as for Linear; bf16 x, 1 to kMaxGemvRows rows, up to kMaxGemvParts parts of one packed
// layout. x is rounded, weights are not; sums are f32, in an order that depends on the depth only:
// a row's results are the same bits whatever the other rows and parts. Overlaps the kernel before
// it (overlap.cuh).
void QuantizedGemv(CudaStream& stream, const MatrixView& x, std::span<const LinearPart> parts,
                   Epilogue epilogue);
// gate.y = silu(x gate^T) * (x up^T), of weights of one layout; up.y is unchanged.
void QuantizedGatedGemv(CudaStream& stream, const MatrixView& x, const LinearPart& gate,
                        const LinearPart& up);

// Whether two formats' weights may be in one launch.
bool SamePackedLayout(const BlockFormat& a, const BlockFormat& b);

}  // namespace litecache::ops::cuda
