// Values of packed blocks (packed_blocks.h). Single rows: ops/dense/embedding_cuda.h.
#pragma once

#include "device/cuda/cuda_device.h"
#include "ops/linear/linear.h"

namespace litecache::ops::cuda {

// y [rows, cols] bf16, contiguous: rows [first, first + y.rows) of packed `weight`, rounded to
// nearest; first is a multiple of kPackedRows.
void UnpackBlocks(CudaStream& stream, const MatrixView& weight, int64_t first, const MatrixView& y);

}  // namespace litecache::ops::cuda
