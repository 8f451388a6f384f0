// Products of few rows with bf16 matrices of experts, near the memory bandwidth.
//
// All rows are of bf16, depths and strides are multiples of 8, and data is 16-byte aligned. Each
// kernel lets the one behind it start only after it has waited for the one before it, and the
// kernels of `down` read routing, lists and weights before they wait (ops/common/overlap.cuh): what
// is launched just before them must be a kernel that reads neither, does not write them, and has
// waited for those that do before it lets the next one start.
#pragma once

#include "device/cuda/cuda_device.h"
#include "ops/experts/expert_lists_cuda.h"

namespace litecache::ops::cuda {

// The rows of a tile in the lists for these products.
inline constexpr int64_t kExpertTileRows = 16;
// Up to this many rows, every pair reads its own weights.
inline constexpr int64_t kMostExpertPairRows = 4;

// Every pair by itself. h [pairs, intermediate] = function(x gate^T, x up^T) for x of the pair's
// row; y += sum over a row's pairs of weight * (h down^T), f32.
void GatedPairs(CudaStream& stream, const MatrixView& x, const Routing& routing,
                const ExpertMatrices& gate, const ExpertMatrices& up, const GateFunction& function,
                const MatrixView& h);
void DownPairs(CudaStream& stream, const MatrixView& h, const Routing& routing,
               const ExpertMatrices& down, const MatrixView& y);

// A tile of pairs reads its expert's weights once. A row's bits do not depend on the other rows.
// output [pairs, hidden] = h down^T.
void GatedTiles(CudaStream& stream, const MatrixView& x, int64_t active, const ExpertLists& lists,
                const ExpertMatrices& gate, const ExpertMatrices& up, const GateFunction& function,
                const MatrixView& h);
void DownTiles(CudaStream& stream, const MatrixView& h, const ExpertLists& lists,
               const ExpertMatrices& down, const MatrixView& output);

}  // namespace litecache::ops::cuda
