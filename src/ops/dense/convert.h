// Converts activations between dtypes.
#pragma once

#include "base/matrix_view.h"
#include "device/device.h"

namespace litecache::ops {

// y = x, f32 to bf16 (to nearest even) or bf16 to f32, [T, n], no overlap.
void Convert(Stream& stream, const MatrixView& x, const MatrixView& y);

}  // namespace litecache::ops
