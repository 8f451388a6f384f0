// The products of grouped_gemm_cuda.h on GPUs of compute capability 9.0, by instructions that no
// other GPU has. They are compiled for sm_90a alone, whatever the other kernels are compiled for.
#pragma once

#include <cstdint>

#include "device/cuda/cuda_device.h"
#include "ops/experts/grouped_gemm_parts.cuh"

namespace litecache::ops::cuda {

// Gated: weights[0] is gate and weights[1] up. The launch sets a.output_blocks.
void HopperGroupedGemm(CudaStream& stream, grouped::GroupedArguments a, int64_t tile_rows,
                       bool gated);

}  // namespace litecache::ops::cuda
