// Twins of ops/dense/activation.h on a GPU; all memory is the device's.
#pragma once

#include "base/matrix_view.h"
#include "device/device.h"

namespace litecache::ops::cuda {

// y = silu(gate) * up, all in one dtype (bf16 or f32) or y alone in bf16; y may be gate where it
// has its dtype; arithmetic in f32. Relu: bf16 or f32.
void SiluMul(Stream& stream, const MatrixView& gate, const MatrixView& up, const MatrixView& y);
void Relu(Stream& stream, const MatrixView& x);

}  // namespace litecache::ops::cuda
