// The soft cap of logits (Gemma 2).
#pragma once

#include "base/matrix_view.h"
#include "device/device.h"

namespace litecache::ops {

// x = cap tanh(x / cap), cap > 0. x [T, n] f32. On the CPU only.
void SoftCap(Stream& stream, float cap, const MatrixView& x);

}  // namespace litecache::ops
