// ops/dense/activation.h on a GPU; all pointers are device memory.
#pragma once

#include "base/matrix_view.h"
#include "device/device.h"
#include "ops/common/gate_function.h"
#include "ops/common/xielu.h"

namespace litecache::ops::cuda {

// y = function(gate, up), all in one dtype (bf16 or f32), or only y in bf16; y may alias gate if
// the dtypes are equal; arithmetic in f32. The others: x is bf16 or f32.
void GateMul(Stream& stream, const MatrixView& gate, const MatrixView& up, const MatrixView& y,
             const GateFunction& function);
void SigmoidMul(Stream& stream, const MatrixView& gate, const MatrixView& x);
void Relu(Stream& stream, const MatrixView& x);
void ReluSquared(Stream& stream, const MatrixView& x);
void Gelu(Stream& stream, const MatrixView& x);
void Xielu(Stream& stream, const XieluFunction& function, const MatrixView& x);

}  // namespace litecache::ops::cuda
