// Products of experts whose weights are packed blocks (ops/linear/quantized/packed_blocks.h).
#pragma once

#include <cstdint>

#include "base/matrix_view.h"
#include "device/cuda/cuda_device.h"
#include "ops/common/gate_function.h"
#include "ops/experts/expert_lists_cuda.h"

namespace litecache::ops::cuda {

enum class QuantizedExpertsWay {
  kPairs,     // the first kernel, without lists: every pair reads its expert's weights; where
              // experts are elsewhere, with lists of one row to a tile for more rows than one
  kTiles,     // the first kernel, with lists of kQuantizedExpertRows rows to a tile
  kUnpacked,  // the weights as bf16 in memory, and the grouped GEMM with lists of its own
};
// What takes the least time. On a batch-invariant stream, up to kMostInvariantRows rows never need
// the last.
QuantizedExpertsWay WayOfQuantizedExperts(int64_t rows, int64_t active, int64_t experts);

// The rows of a tile in the lists for the first kernel.
inline constexpr int64_t kQuantizedExpertRows = 8;

// h[p] = function(x[p / active] gate^T, x[p / active] up^T) for the routing's pairs p, with the
// experts' gate and up. x [rows, hidden] bf16; h [pairs, intermediate] bf16 or f32. Weights are
// exact, sums are f32 in an order that depends on the depth only, and h is rounded once; twice, if
// gate and up have different packed layouts. lists: of kQuantizedExpertRows, or, if each pair is to
// be multiplied by itself, of one row or without an order.
void QuantizedExpertsGated(CudaStream& stream, const MatrixView& x, const Routing& routing,
                           const ExpertLists& lists, const ExpertMatrices& gate,
                           const ExpertMatrices& up, const GateFunction& function,
                           const MatrixView& h);
// y[p] = h[p] down^T, of the expert of pair p. h [pairs, intermediate] bf16; y [pairs, hidden] bf16
// or f32. To be called after QuantizedExpertsGated with the same routing and lists: the kernel
// reads these, and weights, while the kernel before it is still at work (ops/common/overlap.cuh),
// which must not be one that writes them.
void QuantizedExpertsDown(CudaStream& stream, const MatrixView& h, const Routing& routing,
                          const ExpertLists& lists, const ExpertMatrices& down,
                          const MatrixView& y);

// The same for many rows, by grouped_gemm_cuda.h: h, y bf16; lists of tile_rows rows to a tile,
// memory of UnpackedExpertsBytes(), in which the weights are rounded to bf16, some at a time.
uint64_t UnpackedExpertsBytes(const ExpertLayer& layer);
void UnpackedExpertsGated(CudaStream& stream, const MatrixView& x, int64_t active,
                          const ExpertLists& lists, int64_t tile_rows, const ExpertMatrices& gate,
                          const ExpertMatrices& up, const GateFunction& function, void* memory,
                          const MatrixView& h);
void UnpackedExpertsDown(CudaStream& stream, const MatrixView& h, const ExpertLists& lists,
                         int64_t tile_rows, const ExpertMatrices& down, void* memory,
                         const MatrixView& y);

}  // namespace litecache::ops::cuda
