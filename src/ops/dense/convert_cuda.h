// ops/dense/convert.h on a GPU; all pointers are device memory.
#pragma once

#include "base/matrix_view.h"
#include "device/device.h"

namespace litecache::ops::cuda {

// f32 <-> bf16 or f16, [T, n].
void Convert(Stream& stream, const MatrixView& x, const MatrixView& y);

}  // namespace litecache::ops::cuda
