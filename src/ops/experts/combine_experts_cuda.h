// The sum of what a row's experts return.
#pragma once

#include "device/cuda/cuda_device.h"
#include "ops/experts/experts.h"

namespace litecache::ops::cuda {

// y[row] += sum over i of weight(row, i) * output[row * active + i], in f32 and the order of i.
// output [pairs, cols] bf16 or f32, contiguous; y [rows, cols] f32.
void CombineExperts(CudaStream& stream, const Routing& routing, const MatrixView& output,
                    const MatrixView& y);

}  // namespace litecache::ops::cuda
