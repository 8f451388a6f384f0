// Products of many rows with bf16 matrices of experts, on tensor cores: every tile of a list is
// multiplied by its expert's matrix, all in one launch.
#pragma once

#include <cstdint>

#include "device/cuda/cuda_device.h"
#include "ops/common/gate_function.h"
#include "ops/experts/expert_biases_cuda.h"
#include "ops/experts/expert_lists_cuda.h"

namespace litecache::ops::cuda {

// A bf16 matrix of each of the experts [begin, end), and what is added to its products; a product
// skips the tiles of all others.
struct GroupedWeights {
  // The expert's matrix is at data[expert], a table in device memory, or, if this is null, at
  // base + (expert - begin) * expert_stride elements. 16-byte aligned.
  const void* const* data = nullptr;
  const void* base = nullptr;
  int64_t expert_stride = 0;  // elements, a multiple of 8
  int64_t stride = 0;         // elements between rows of a matrix, a multiple of 8
  int32_t begin = 0, end = 0;
  ExpertBiases biases;  // of all experts
};

// All of a layer's matrices, of bf16.
GroupedWeights AllExperts(const ExpertMatrices& matrices);

// The rows of a tile in the lists for these products: 64 or 128.
int64_t GroupedTileRows(int64_t pairs, int64_t experts);

// h[p] = function(x[p / active] gate^T, x[p / active] up^T) for the pairs p of the lists, whose
// tiles have tile_rows rows. x [rows, depth] and h [pairs, outputs] bf16; depth, outputs and
// strides are multiples of 8, and all data is 16-byte aligned. gate and up are of the same experts.
void GroupedGatedGemm(CudaStream& stream, const MatrixView& x, int64_t active,
                      const ExpertLists& lists, int64_t tile_rows, const GroupedWeights& gate,
                      const GroupedWeights& up, const GateFunction& function, const MatrixView& h);

// y[p] = x[p] weight^T for the pairs p of the lists. x [pairs, depth] and y [pairs, outputs] bf16,
// as above.
void GroupedGemm(CudaStream& stream, const MatrixView& x, const ExpertLists& lists,
                 int64_t tile_rows, const GroupedWeights& weight, const MatrixView& y);

}  // namespace litecache::ops::cuda
