// Element-wise non-linearities of the feed-forward block. On a CUDA stream they also accept bf16
// (ops/dense/activation_cuda.h).
#pragma once

#include "base/matrix_view.h"
#include "device/device.h"
#include "ops/common/gate_function.h"
#include "ops/common/xielu.h"

namespace litecache::ops {

// y = function(gate, up). gate, up, y [T, n] f32; y may alias gate.
void GateMul(Stream& stream, const MatrixView& gate, const MatrixView& up, const MatrixView& y,
             const GateFunction& function = kSilu);

// x /= 1 + exp(-gate) in place. x [T, n] f32; gate [T, n] or, for all of a row, [T, 1] f32.
void SigmoidMul(Stream& stream, const MatrixView& gate, const MatrixView& x);

// x = max(x, 0) in place. x [T, n] f32.
void Relu(Stream& stream, const MatrixView& x);
// x = max(x, 0)^2 in place. x [T, n] f32.
void ReluSquared(Stream& stream, const MatrixView& x);
// x = GELU(x) in its tanh form, in place. x [T, n] f32.
void Gelu(Stream& stream, const MatrixView& x);
// x = function(x) in place. x [T, n] f32.
void Xielu(Stream& stream, const XieluFunction& function, const MatrixView& x);

}  // namespace litecache::ops
