// Converts activations between dtypes.
#pragma once

#include "base/matrix_view.h"
#include "device/device.h"

namespace litecache::ops {

// y = x, [T, n], no overlap: f32 to bf16 or f16 (to nearest even), or one of these to f32.
void Convert(Stream& stream, const MatrixView& x, const MatrixView& y);

}  // namespace litecache::ops
