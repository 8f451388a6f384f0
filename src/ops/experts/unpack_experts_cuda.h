// Values of experts' packed blocks.
#pragma once

#include <cstdint>

#include "device/cuda/cuda_device.h"
#include "ops/experts/experts.h"

namespace litecache::ops::cuda {

// Of the experts [begin, end), rows [first, first + rows) as bf16, rounded to nearest, one expert's
// after the other's, each contiguous [rows, cols]; first is a multiple of kPackedRows. One launch.
void UnpackExperts(CudaStream& stream, const ExpertMatrices& matrices, int64_t begin, int64_t end,
                   int64_t first, int64_t rows, void* y);

}  // namespace litecache::ops::cuda
