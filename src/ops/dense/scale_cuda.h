// ops/dense/scale.h on a GPU; all pointers are device memory.
#pragma once

#include "base/matrix_view.h"
#include "device/device.h"

namespace litecache::ops::cuda {

void Scale(Stream& stream, float factor, const MatrixView& x);
void ScaleBy(Stream& stream, const float* factor, const MatrixView& x);
void AddScaled(Stream& stream, float factor, const MatrixView& x, const MatrixView& y);

}  // namespace litecache::ops::cuda
