// The soft cap of logits (Gemma 2 and 4).
#pragma once

#include "base/matrix_view.h"
#include "device/device.h"

namespace litecache::ops {

// x = cap tanh(x / cap), cap > 0; infinities become the cap, NaN stays NaN. x [T, n] f32.
void SoftCap(Stream& stream, float cap, const MatrixView& x);

}  // namespace litecache::ops
