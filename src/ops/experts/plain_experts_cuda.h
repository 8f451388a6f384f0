// Products of experts of any sizes, alignment and number of rows, by plain loops: for f32, whose
// speed does not matter, and for bf16 where other kernels do not apply.
#pragma once

#include "device/cuda/cuda_device.h"
#include "ops/experts/experts.h"

namespace litecache::ops::cuda {

// h [pairs, intermediate] = function(x gate^T, x up^T). x, weights and h of one dtype.
void PlainGated(CudaStream& stream, const MatrixView& x, const Routing& routing,
                const ExpertMatrices& gate, const ExpertMatrices& up, const GateFunction& function,
                const MatrixView& h);

// y += sum over a row's pairs of weight * (h down^T).
void PlainDown(CudaStream& stream, const MatrixView& h, const Routing& routing,
               const ExpertMatrices& down, const MatrixView& y);

}  // namespace litecache::ops::cuda
